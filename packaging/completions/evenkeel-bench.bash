# bash completion for evenkeel-bench; the options are asked of the program itself

_evenkeel_bench() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        words='kernels engine serve compare --help --version'
    elif [[ $cur == -* ]]; then
        words=$(evenkeel-bench "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '^  --[a-z-]+')
    else
        case $prev in
            --dtype) words='bfloat16 float16 float32' ;;
            --endpoint) words='completions chat' ;;
            --isa) words='ref avx2 avx512 avx512vnni avx512bf16 amx' ;;
            --print-options) words='markdown roff yaml' ;;
            *) compopt -o default; return ;;
        esac
    fi
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _evenkeel_bench evenkeel-bench
