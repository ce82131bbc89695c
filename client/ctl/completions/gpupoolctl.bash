# SPDX-License-Identifier: Apache-2.0
# Completion of gpupoolctl for bash: commands and options as the program's own help lists them.
_gpupoolctl() {
    local current=${COMP_WORDS[COMP_CWORD]} command='' word count=0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == -* || $word == = ]] && continue
        command=${command:-$word}
        count=$((count + 1))
    done
    if [[ $command == run && $current != -* ]]; then
        COMPREPLY=($(compgen -c -- "$current") $(compgen -f -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" help $command 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)" -- "$current"))
    elif [[ $count -gt 1 ]]; then
        COMPREPLY=()
    elif [[ $command == session ]]; then
        COMPREPLY=($(compgen -W end -- "$current"))
    elif [[ $command == record ]]; then
        COMPREPLY=($(compgen -W export -- "$current"))
    elif [[ $command == scope ]]; then
        COMPREPLY=($(compgen -W "add set drop list" -- "$current"))
    elif [[ -z $command || $command == help ]]; then
        COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" --help 2>/dev/null |
            awk '/^Commands:/ {list = 1; next} /^Options:/ {list = 0} list && /^  [a-z]/ {print $1}')" -- "$current"))
    fi
}
complete -F _gpupoolctl gpupoolctl
