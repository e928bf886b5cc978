# fish completion for evenkeelctl; written by evenkeelctl --print-completion fish
set -l verbs status limits drain resume restart rolling-restart engine explain reload help top diagnose plan preflight recover bench-fit setup endpoint-snippet events oom postmortem support-bundle debug remedies
complete -c evenkeelctl -f
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a status -d 'one line per server and what was decided last'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a limits -d 'show or change limits'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a drain -d 'finish what runs, accept nothing new'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a resume -d 'accept requests again; takes a drain or restart back'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a restart -d 'drain, then start again'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a rolling-restart -d 'restart, one server at a time'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a engine -d 'show or change limits'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a explain -d 'the last decisions with numbers and reason codes'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a reload -d 'read the configuration again, or say why not'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a help -d 'this text, or that of one command'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a top -d 'all servers live, other vLLMs of this host too'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a diagnose -d 'what a log'\''s failure is, what helps, what does not'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a plan -d 'what fits which cards, which settings, how fast'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a preflight -d 'what of this machine would make a server fail'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a recover -d 'emergency: end strays, start with low limits'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a bench-fit -d 'search the limit that fits, under load'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a setup -d 'plan a server and write its first configuration'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a endpoint-snippet -d 'entries for haproxy, prometheus and routers'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a events -d 'what was decided for all servers; --follow goes on'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a oom -d 'when memory ran out, and what was done about it'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a postmortem -d 'what a server did in the minute before it ended'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a support-bundle -d 'states, settings and journal in one archive'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a debug -d 'each sample and what came of it in the log'
complete -c evenkeelctl -n "not __fish_seen_subcommand_from $verbs" -a remedies -d 'flags that running out of memory taught; forget them'
complete -c evenkeelctl -n '__fish_seen_subcommand_from limits; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a get -d 'values, ceilings, pins; also without get'
complete -c evenkeelctl -n '__fish_seen_subcommand_from limits; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a set -d 'set max_num_running_seqs or max_num_batched_tokens'
complete -c evenkeelctl -n '__fish_seen_subcommand_from limits; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a pin -d 'keep a limit: evenkeeld does not move it'
complete -c evenkeelctl -n '__fish_seen_subcommand_from limits; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a unpin -d 'let evenkeeld move it again'
complete -c evenkeelctl -n '__fish_seen_subcommand_from engine; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a restart -d 'start the engine'\''s process again, without a drain'
complete -c evenkeelctl -n '__fish_seen_subcommand_from engine; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a release -d 'end the engine'\''s process, requests wait'
complete -c evenkeelctl -n '__fish_seen_subcommand_from engine; and not __fish_seen_subcommand_from get set pin unpin restart release acquire' -a acquire -d 'start the engine'\''s process that was released'
complete -c evenkeelctl -n '__fish_seen_subcommand_from set pin unpin' -a 'max_num_running_seqs= max_num_batched_tokens='
complete -c evenkeelctl -s s -l server -x -d 'which server, where there are several' -a "(evenkeelctl --json status 2>/dev/null | string match -r '^      \"name\": \"(.*)\"' -g)"
complete -c evenkeelctl -l socket -r -F -d 'evenkeeld'\''s socket (else $EVENKEEL_SOCKET, then'
complete -c evenkeelctl -s j -l json -d 'print the answer as JSON'
complete -c evenkeelctl -s n -l limit -x -d 'explain: how many decisions (20; with --since all)'
complete -c evenkeelctl -l since -x -d 'explain: from then on, like 2h, today, yesterday,'
complete -c evenkeelctl -l reason -x -d 'limits: said in the journal'
complete -c evenkeelctl -l pin -d 'limits set: pin as well'
complete -c evenkeelctl -s w -l wait -d 'drain, resume, (rolling-)restart, engine: until it'
complete -c evenkeelctl -l timeout -x -d 'and no longer (600); --wait goes without saying'
complete -c evenkeelctl -s h -l help -d 'a summary, or that of one command'
complete -c evenkeelctl -l version -d 'the version'
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l url -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l no-host
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l once
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l interval -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l count -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l price -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l margin -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from top' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l live -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l seconds -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l watch
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l journal -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l lang -x -a 'en zh'
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l markdown
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l each
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l most -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l list
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l explain -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l signatures -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l test
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -l page
complete -c evenkeelctl -n '__fish_seen_subcommand_from diagnose' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l gpu -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l device-memory -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l gpus -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l nnodes -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l gpu-memory-utilization -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l tensor-parallel-size -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l pipeline-parallel-size -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l max-model-len -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l max-num-seqs -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l max-num-batched-tokens -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l weight-bits -x -a 'auto 16 8 4'
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l kv-cache-dtype -x -a 'any auto fp8'
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l rate -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l prompt -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l output -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l trace -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l ttft -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l itl -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l price -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l bandwidth -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l tflops -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l measure
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l machine -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l estimate
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l explain
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l html -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l list-gpus
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -l page
complete -c evenkeelctl -n '__fish_seen_subcommand_from plan' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from preflight' -l port -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from preflight' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from preflight' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l dry-run
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l max-num-seqs -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l max-num-batched-tokens -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l gpu-memory-utilization -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l wait -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l timeout -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l all
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l below -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from recover' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l start -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l step -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l max-num-seqs -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l settle -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l measure -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l use-low -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l use-high -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l preemptions -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l itl -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l prompt -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l output -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l clients -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l trace -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l speed -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l apply
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l restart
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l shares -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l batched-tokens -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l block-sizes -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l dtypes -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l wait -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l control -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -l url -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from bench-fit' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l model -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l host -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l port -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l gpu -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l gpus -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l gpu-memory-utilization -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l dir -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l force
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -l dry-run
complete -c evenkeelctl -n '__fish_seen_subcommand_from setup' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from endpoint-snippet' -l address -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from endpoint-snippet' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from endpoint-snippet' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from endpoint-snippet' -a 'haproxy prometheus envoy vllm-router llm-d'
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l follow
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l since -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l limit -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from events' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from oom' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from oom' -l since -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from oom' -l limit -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from oom' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from oom' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l end -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l replay
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l max-num-seqs -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l max-num-batched-tokens -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l num-gpu-blocks-override -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from postmortem' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from support-bundle' -l config-dir -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from support-bundle' -l no-journal
complete -c evenkeelctl -n '__fish_seen_subcommand_from support-bundle' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from support-bundle' -F
complete -c evenkeelctl -n '__fish_seen_subcommand_from debug' -l for -x
complete -c evenkeelctl -n '__fish_seen_subcommand_from debug' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from debug' -a 'on off'
complete -c evenkeelctl -n '__fish_seen_subcommand_from remedies' -l server -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from remedies' -l json
complete -c evenkeelctl -n '__fish_seen_subcommand_from remedies' -l socket -r
complete -c evenkeelctl -n '__fish_seen_subcommand_from remedies' -a 'forget'
