#compdef gpupoolctl
# SPDX-License-Identifier: Apache-2.0
# Completion of gpupoolctl for zsh: commands and options as the program's own help lists them.
_gpupoolctl() {
    local command='' word count=0
    local -a found
    for word in "${(@)words[2,CURRENT-1]}"; do
        [[ $word == -* ]] && continue
        command=${command:-$word}
        count=$((count + 1))
    done
    if [[ $command == run && $words[CURRENT] != -* ]]; then
        _command_names -e
        _files
    elif [[ $words[CURRENT] == -* ]]; then
        found=(${(f)"$($words[1] help $command 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)"})
        compadd -- $found
    elif [[ $count -gt 1 ]]; then
        return
    elif [[ $command == session ]]; then
        compadd end
    elif [[ $command == record ]]; then
        compadd export
    elif [[ $command == scope ]]; then
        compadd add set drop list
    elif [[ -z $command || $command == help ]]; then
        found=(${(f)"$($words[1] --help 2>/dev/null |
            awk '/^Commands:/ {list = 1; next} /^Options:/ {list = 0} list && /^  [a-z]/ {print $1}')"})
        compadd -- $found
    fi
}
_gpupoolctl "$@"
