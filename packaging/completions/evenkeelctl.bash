# bash completion for evenkeelctl

_evenkeelctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word i command='' sub=''
    local knobs='max_num_running_seqs max_num_batched_tokens' own='events oom diagnose plan preflight recover setup endpoint-snippet support-bundle debug' socket=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
            --socket) socket=(--socket "${COMP_WORDS[i+1]}"); ((i++)) ;;
            -s | --server | -n | --limit | --reason) ((i++)) ;;
            -*) ;;
            *) if [[ -z $command ]]; then command=$word; elif [[ -z $sub ]]; then sub=$word; fi ;;
        esac
    done
    COMPREPLY=()
    case $prev in
        -s | --server)
            # shellcheck disable=SC2207
            COMPREPLY=($(compgen -W "$(evenkeelctl "${socket[@]}" --json status 2>/dev/null |
                sed -n 's/^      "name": "\(.*\)",*$/\1/p')" -- "$cur"))
            return ;;
        --socket) compopt -o default; return ;;
        -n | --limit | --reason) return ;;
    esac
    if [[ $cur == -* && " $own " == *" $command "* ]]; then
        word=$(evenkeelctl "$command" --help 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p')
    elif [[ $cur == -* ]]; then
        word='--server --socket --json --limit --reason --pin --once --help --version'
    elif [[ -z $command ]]; then
        word="status top limits drain resume restart roll explain reload help $own"
    elif [[ $command == limits && -z $sub ]]; then
        word='get set pin unpin'
    elif [[ $command == limits && $sub != get ]]; then
        word=$knobs
        [[ $sub == set ]] && word=${knobs// /= }= && compopt -o nospace
    else
        [[ $command == diagnose ]] && compopt -o default
        [[ $command == support-bundle ]] && compopt -o default
        [[ $command == debug ]] && COMPREPLY=(on off)
        [[ $command == endpoint-snippet ]] || return
        word='haproxy prometheus envoy vllm-router llm-d'
    fi
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$word" -- "$cur"))
}
complete -F _evenkeelctl evenkeelctl
