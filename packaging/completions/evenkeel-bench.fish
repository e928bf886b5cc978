# fish completion for evenkeel-bench; the options are asked of the program itself
set -l commands kernels engine serve compare
complete -c evenkeel-bench -f -n "not __fish_seen_subcommand_from $commands" -a kernels -d 'each kernel beside the limits'
complete -c evenkeel-bench -f -n "not __fish_seen_subcommand_from $commands" -a engine -d 'prefill and decode of a model'
complete -c evenkeel-bench -f -n "not __fish_seen_subcommand_from $commands" -a serve -d 'load on a server'
complete -c evenkeel-bench -f -n "not __fish_seen_subcommand_from $commands" -a compare -d 'two reports side by side'
for c in $commands
    complete -c evenkeel-bench -F -n "__fish_seen_subcommand_from $c" \
        -a "(string match -q -- '-*' (commandline -ct); and evenkeel-bench $c --help 2>/dev/null | string match -r -- '^  --[a-z-]+' | string trim)"
end
