# fish completion for evenkeelctl
set -l own diagnose plan preflight recover setup endpoint-snippet events oom support-bundle debug
set -l verbs status top limits drain resume restart roll explain reload help $own
complete -c evenkeelctl -f
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a status -d 'one line per server'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a top -d 'the same live'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a limits -d 'get, set, pin, unpin'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a drain -d 'finish what runs, accept nothing new'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a resume -d 'accept requests again'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a restart -d 'drain, then start again'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a roll -d 'restart in its turn'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a explain -d 'the last decisions'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a reload -d 'read the configuration again'
complete -c evenkeelctl -n '__fish_seen_subcommand_from limits; and not __fish_seen_subcommand_from get set pin unpin' -a 'get set pin unpin'
complete -c evenkeelctl -n '__fish_seen_subcommand_from set pin unpin' -a 'max_num_running_seqs= max_num_batched_tokens='
complete -c evenkeelctl -s s -l server -x -d 'which server' -a "(evenkeelctl --json status 2>/dev/null | string match -r '^      \"name\": \"(.*)\"' -g)"
complete -c evenkeelctl -l socket -r -F -d 'socket of evenkeeld'
complete -c evenkeelctl -s j -l json -d 'print JSON'
complete -c evenkeelctl -s n -l limit -x -d 'how many decisions'
complete -c evenkeelctl -l reason -x -d 'said in the journal'
complete -c evenkeelctl -l pin -d 'limits set: pin as well'
complete -c evenkeelctl -l once -d 'top: one picture'
complete -c evenkeelctl -s h -l help -d 'a summary'
complete -c evenkeelctl -l version
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a diagnose -d "what a log's failure is"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a events -d "all decisions in order"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a oom -d "when memory ran out"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a support-bundle -d "one archive for others"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a debug -d "every sample in the log"
complete -c evenkeelctl -n "__fish_seen_subcommand_from debug" -a "on off"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a endpoint-snippet -d "entries for routers"
complete -c evenkeelctl -n "__fish_seen_subcommand_from endpoint-snippet" -a "haproxy prometheus envoy vllm-router llm-d"
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a plan -d 'what fits which cards'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a preflight -d 'what would make a server fail'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a setup -d 'a first configuration'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a recover -d 'end strays, start with low limits'
for verb in $own
    complete -c evenkeelctl -n "__fish_seen_subcommand_from $verb" -F -a "(evenkeelctl $verb --help 2>/dev/null | string match -r '^  --[a-z-]*' | string trim)"
end
