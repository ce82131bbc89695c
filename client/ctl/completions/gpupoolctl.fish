# SPDX-License-Identifier: Apache-2.0
# Completion of gpupoolctl for fish: commands and options as the program's own help lists them.
function __gpupoolctl_command
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; and continue
        echo $word
        return
    end
end
function __gpupoolctl_commands
    gpupoolctl --help 2>/dev/null | awk '/^Commands:/ {list = 1; next} /^Options:/ {list = 0} list && /^  [a-z]/ {print $1}'
end
function __gpupoolctl_options
    gpupoolctl help (__gpupoolctl_command) 2>/dev/null | string match -ar -- '--[a-z-]+' | sort -u
end
complete -c gpupoolctl -f
complete -c gpupoolctl -n 'test -z (__gpupoolctl_command)' -a '(__gpupoolctl_commands)'
complete -c gpupoolctl -n 'test "$(__gpupoolctl_command)" = help' -a '(__gpupoolctl_commands)'
complete -c gpupoolctl -n 'test "$(__gpupoolctl_command)" = session' -a end
complete -c gpupoolctl -n 'test "$(__gpupoolctl_command)" = record' -a export
complete -c gpupoolctl -n 'test "$(__gpupoolctl_command)" = scope' -a 'add set drop list'
complete -c gpupoolctl -n 'string match -q -- "-*" (commandline -ct)' -a '(__gpupoolctl_options)'
complete -c gpupoolctl -n 'test "$(__gpupoolctl_command)" = run' -a '(__fish_complete_subcommand)'
