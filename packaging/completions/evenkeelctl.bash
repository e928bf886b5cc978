# bash completion for evenkeelctl; written by evenkeelctl --print-completion bash

_evenkeelctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} word i command='' sub='' flags words='' files=0 value=0 socket=()
    flags='--server --socket --json --limit --since --reason --pin --wait --timeout --help --version'
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
    case $command in
        top)
            flags='--server --url --no-host --once --json --interval --count --price --margin --socket --help' words='' files=0
            case $prev in
            esac ;;
        diagnose)
            flags='--live --seconds --watch --journal --lang --json --markdown --each --most --list --explain --signatures --test --page --help' words='' files=1
            case $prev in
                --lang) flags='' files=0 words='en zh' value=1 ;;
            esac ;;
        plan)
            flags='--gpu --device-memory --gpus --nnodes --gpu-memory-utilization --tensor-parallel-size --pipeline-parallel-size --max-model-len --max-num-seqs --max-num-batched-tokens --weight-bits --kv-cache-dtype --rate --prompt --output --trace --ttft --itl --price --bandwidth --tflops --measure --machine --estimate --explain --json --html --list-gpus --page --help' words='' files=1
            case $prev in
                --weight-bits) flags='' files=0 words='auto 16 8 4' value=1 ;;
                --kv-cache-dtype) flags='' files=0 words='any auto fp8' value=1 ;;
            esac ;;
        preflight)
            flags='--port --json --help' words='' files=1
            case $prev in
            esac ;;
        recover)
            flags='--dry-run --max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --wait --timeout --all --below --socket --help' words='' files=0
            case $prev in
            esac ;;
        bench-fit)
            flags='--start --step --max-num-seqs --settle --measure --use-low --use-high --preemptions --itl --prompt --output --clients --trace --speed --apply --json --restart --shares --batched-tokens --block-sizes --dtypes --wait --server --socket --control --url --help' words='' files=1
            case $prev in
            esac ;;
        setup)
            flags='--model --host --port --gpu --gpus --gpu-memory-utilization --dir --force --dry-run --help' words='' files=1
            case $prev in
            esac ;;
        endpoint-snippet)
            flags='--address --server --socket --help' words='haproxy prometheus envoy vllm-router llm-d' files=0
            case $prev in
            esac ;;
        events)
            flags='--server --follow --since --limit --json --socket --help' words='' files=0
            case $prev in
            esac ;;
        oom)
            flags='--server --since --limit --json --socket --help' words='' files=0
            case $prev in
            esac ;;
        postmortem)
            flags='--server --end --json --replay --max-num-seqs --max-num-batched-tokens --num-gpu-blocks-override --socket --help' words='' files=1
            case $prev in
            esac ;;
        support-bundle)
            flags='--config-dir --no-journal --socket --help' words='' files=1
            case $prev in
            esac ;;
        debug)
            flags='--for --socket --help' words='on off' files=0
            case $prev in
            esac ;;
        remedies)
            flags='--server --json --socket --help' words='forget' files=0
            case $prev in
            esac ;;
    esac
    if [[ -z $command ]]; then
        words='status limits drain resume restart rolling-restart engine explain reload help top diagnose plan preflight recover bench-fit setup endpoint-snippet events oom postmortem support-bundle debug remedies'
    elif [[ $command == limits && -z $sub ]]; then
        words='get set pin unpin restart release acquire'
    elif [[ $command == limits && $sub != get ]]; then
        words='max_num_running_seqs max_num_batched_tokens'
        [[ $sub == set ]] && words=${words// /= }= && compopt -o nospace
    fi
    [[ $cur == -* && $value == 0 ]] && words=$flags
    [[ $cur != -* && $files == 1 ]] && compopt -o default
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _evenkeelctl evenkeelctl
