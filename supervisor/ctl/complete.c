/*
 * Completion for three shells from the program's own tables: commands, verbs, options, choices.
 * Only the names of servers are asked of evenkeeld, when Tab is pressed.
 */
#include "supervisor/ctl/complete.h"

#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/verb.h"

/* Text between single quotes of a shell; zsh's _describe wants ':' escaped too. */
static void put_quoted(struct ek_buf *out, const char *text, bool zsh)
{
    for (; *text && *text != '\n'; text++) {
        if (*text == '\'')
            (void)ek_buf_puts(out, "'\\''");
        else if (zsh && *text == ':')
            (void)ek_buf_puts(out, "\\:");
        else
            (void)ek_buf_add(out, text, 1);
    }
}

/* "a|b|c" as "a b c". */
static void put_words(struct ek_buf *out, const char *words)
{
    for (; *words; words++)
        (void)ek_buf_add(out, *words == '|' ? " " : words, 1);
}

/* Options of a verb that are typed: not those that are only accepted. */
static bool is_typed(const struct ek_opt *o)
{
    return o->type != OPT_IGNORED;
}

static void put_flags(struct ek_buf *out, const struct ek_opt *o)
{
    for (const char *blank = ""; o->name; o++) {
        if (!is_typed(o))
            continue;
        (void)ek_buf_printf(out, "%s--%s", blank, o->name);
        blank = " ";
    }
    (void)ek_buf_puts(out, " --help");
}

static bool is_first(uint32_t i)
{
    return i == 0 || strcmp(args_command_at(i)->word, args_command_at(i - 1)->word) != 0;
}

/* All first words. */
static void put_commands(struct ek_buf *out)
{
    const struct args_command *c;
    const struct verb *v;
    for (uint32_t i = 0; (c = args_command_at(i)); i++) {
        if (is_first(i))
            (void)ek_buf_printf(out, "%s%s", i ? " " : "", c->word);
    }
    for (uint32_t i = 0; (v = verb_at(i)); i++)
        (void)ek_buf_printf(out, " %s", v->name);
}

static void put_subs(struct ek_buf *out)
{
    const struct args_command *c;
    const char *blank = "";
    for (uint32_t i = 0; (c = args_command_at(i)); i++) {
        if (!c->sub)
            continue;
        (void)ek_buf_printf(out, "%s%s", blank, c->sub);
        blank = " ";
    }
}

static void put_own_options(struct ek_buf *out)
{
    const struct args_option *o;
    for (uint32_t i = 0; (o = args_option_at(i)); i++)
        (void)ek_buf_printf(out, "%s--%s", i ? " " : "", o->name);
}

/* ---- bash ---- */

static void bash_verbs(struct ek_buf *out)
{
    const struct verb *v;
    (void)ek_buf_puts(out, "    case $command in\n");
    for (uint32_t i = 0; (v = verb_at(i)); i++) {
        (void)ek_buf_printf(out, "        %s)\n            flags='", v->name);
        put_flags(out, v->options);
        (void)ek_buf_puts(out, "' words='");
        put_words(out, v->words ? v->words : "");
        (void)ek_buf_printf(out, "' files=%d\n            case $prev in\n", v->word && !v->words);
        for (const struct ek_opt *o = v->options; o->name; o++) {
            if (o->type != OPT_CHOICE || !o->choices)
                continue;
            (void)ek_buf_printf(out, "                --%s) flags='' files=0 words='", o->name);
            put_words(out, o->choices);
            (void)ek_buf_puts(out, "' value=1 ;;\n");
        }
        (void)ek_buf_puts(out, "            esac ;;\n");
    }
    (void)ek_buf_puts(out, "    esac\n");
}

static void write_bash(struct ek_buf *out)
{
    (void)ek_buf_puts(out,
                      "# bash completion for evenkeelctl; written by evenkeelctl "
                      "--print-completion bash\n\n"
                      "_evenkeelctl() {\n"
                      "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
                      "word i command='' sub='' flags words='' files=0 value=0 socket=()\n"
                      "    flags='");
    put_own_options(out);
    (void)ek_buf_puts(
        out, "'\n"
             "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
             "        word=${COMP_WORDS[i]}\n"
             "        case $word in\n"
             "            --socket) socket=(--socket \"${COMP_WORDS[i+1]}\"); ((i++)) ;;\n"
             "            -s | --server | -n | --limit | --reason) ((i++)) ;;\n"
             "            -*) ;;\n"
             "            *) if [[ -z $command ]]; then command=$word; elif [[ -z $sub ]]; then "
             "sub=$word; fi ;;\n"
             "        esac\n"
             "    done\n"
             "    COMPREPLY=()\n"
             "    case $prev in\n"
             "        -s | --server)\n"
             "            # shellcheck disable=SC2207\n"
             "            COMPREPLY=($(compgen -W \"$(evenkeelctl \"${socket[@]}\" --json status "
             "2>/dev/null |\n"
             "                sed -n 's/^      \"name\": \"\\(.*\\)\",*$/\\1/p')\" -- \"$cur\"))\n"
             "            return ;;\n"
             "        --socket) compopt -o default; return ;;\n"
             "        -n | --limit | --reason) return ;;\n"
             "    esac\n");
    bash_verbs(out);
    (void)ek_buf_puts(out, "    if [[ -z $command ]]; then\n        words='");
    put_commands(out);
    (void)ek_buf_puts(out,
                      "'\n    elif [[ $command == limits && -z $sub ]]; then\n        words='");
    put_subs(out);
    (void)ek_buf_puts(out, "'\n    elif [[ $command == limits && $sub != get ]]; then\n"
                           "        words='");
    (void)ek_buf_printf(out, "%s %s'\n", args_knob(CTL_SEQS), args_knob(CTL_TOKENS));
    (void)ek_buf_puts(out,
                      "        [[ $sub == set ]] && words=${words// /= }= && compopt -o nospace\n"
                      "    fi\n"
                      "    [[ $cur == -* && $value == 0 ]] && words=$flags\n"
                      "    [[ $cur != -* && $files == 1 ]] && compopt -o default\n"
                      "    # shellcheck disable=SC2207\n"
                      "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                      "}\n"
                      "complete -F _evenkeelctl evenkeelctl\n");
}

/* ---- zsh ---- */

static void zsh_commands(struct ek_buf *out)
{
    const struct args_command *c;
    const struct verb *v;
    for (uint32_t i = 0; (c = args_command_at(i)); i++) {
        if (!is_first(i))
            continue;
        (void)ek_buf_printf(out, "        '%s:", c->word);
        put_quoted(out, c->sub ? "show or change limits" : c->about, true);
        (void)ek_buf_puts(out, "'\n");
    }
    for (uint32_t i = 0; (v = verb_at(i)); i++) {
        (void)ek_buf_printf(out, "        '%s:", v->name);
        put_quoted(out, v->about, true);
        (void)ek_buf_puts(out, "'\n");
    }
}

static void zsh_verbs(struct ek_buf *out)
{
    const struct verb *v;
    for (uint32_t i = 0; (v = verb_at(i)); i++) {
        (void)ek_buf_printf(
            out, "                %s)\n                    case $words[CURRENT-1] in\n", v->name);
        for (const struct ek_opt *o = v->options; o->name; o++) {
            if (o->type != OPT_CHOICE || !o->choices)
                continue;
            (void)ek_buf_printf(out, "                        --%s) compadd -- ", o->name);
            put_words(out, o->choices);
            (void)ek_buf_puts(out, "; return ;;\n");
        }
        (void)ek_buf_puts(out, "                    esac\n                    compadd -- ");
        put_flags(out, v->options);
        (void)ek_buf_puts(out, "\n");
        if (v->words) {
            (void)ek_buf_puts(out, "                    compadd -- ");
            put_words(out, v->words);
            (void)ek_buf_puts(out, "\n");
        } else if (v->word) {
            (void)ek_buf_puts(out, "                    _files\n");
        }
        (void)ek_buf_puts(out, "                    return ;;\n");
    }
}

static void zsh_options(struct ek_buf *out)
{
    const struct args_option *o;
    for (uint32_t i = 0; (o = args_option_at(i)); i++) {
        if (o->letter)
            (void)ek_buf_printf(out, "        '(-%c --%s)'{-%c,--%s}'[", o->letter, o->name,
                                o->letter, o->name);
        else
            (void)ek_buf_printf(out, "        '--%s[", o->name);
        put_quoted(out, o->about, true);
        (void)ek_buf_printf(out, "]%s' \\\n",
                            !o->takes                        ? ""
                            : strcmp(o->name, "server") == 0 ? ":server:_evenkeelctl_servers"
                            : strcmp(o->name, "socket") == 0 ? ":socket:_files"
                                                             : ":value:");
    }
}

static void write_zsh(struct ek_buf *out)
{
    (void)ek_buf_puts(
        out, "#compdef evenkeelctl\n"
             "# zsh completion for evenkeelctl; written by evenkeelctl --print-completion zsh\n\n"
             "_evenkeelctl_servers() {\n"
             "    local -a socket names\n"
             "    [[ -n ${opt_args[--socket]} ]] && socket=(--socket ${opt_args[--socket]})\n"
             "    names=(${(f)\"$(evenkeelctl $socket --json status 2>/dev/null | sed -n 's/^      "
             "\"name\": \"\\(.*\\)\",*$/\\1/p')\"})\n"
             "    _describe server names\n"
             "}\n\n"
             "_evenkeelctl() {\n"
             "    local curcontext=$curcontext state line\n"
             "    typeset -A opt_args\n"
             "    local -a commands knobs\n"
             "    commands=(\n");
    zsh_commands(out);
    (void)ek_buf_printf(out, "    )\n    knobs=(%s %s)\n    _arguments -C \\\n",
                        args_knob(CTL_SEQS), args_knob(CTL_TOKENS));
    zsh_options(out);
    (void)ek_buf_puts(out, "        '1:command:->command' '*::argument:->argument'\n"
                           "    case $state in\n"
                           "        command) _describe command commands ;;\n"
                           "        argument)\n"
                           "            case $line[1] in\n");
    zsh_verbs(out);
    (void)ek_buf_puts(out, "            esac\n"
                           "            [[ $line[1] == limits ]] || return\n"
                           "            if ((CURRENT == 2)); then\n"
                           "                _values 'what' ");
    put_subs(out);
    (void)ek_buf_puts(out, "\n"
                           "            elif [[ $words[2] == set ]]; then\n"
                           "                compadd -S = -- $knobs\n"
                           "            elif [[ $words[2] != get ]]; then\n"
                           "                compadd -- $knobs\n"
                           "            fi ;;\n"
                           "    esac\n"
                           "}\n"
                           "_evenkeelctl \"$@\"\n");
}

/* ---- fish ---- */

static void fish_first(struct ek_buf *out, const char *word, const char *about)
{
    (void)ek_buf_printf(
        out,
        "complete -c evenkeelctl -n \"not __fish_seen_subcommand_from $verbs\" -a %s "
        "-d '",
        word);
    put_quoted(out, about, false);
    (void)ek_buf_puts(out, "'\n");
}

static void fish_verb(struct ek_buf *out, const struct verb *v)
{
    for (const struct ek_opt *o = v->options; o->name; o++) {
        bool choice = o->type == OPT_CHOICE && o->choices;
        if (!is_typed(o))
            continue;
        (void)ek_buf_printf(out,
                            "complete -c evenkeelctl -n '__fish_seen_subcommand_from %s' -l %s%s",
                            v->name, o->name,
                            o->type == OPT_BOOL                            ? ""
                            : choice                                       ? " -x -a '"
                            : o->type == OPT_STRING || o->type == OPT_LIST ? " -r"
                                                                           : " -x");
        if (choice) {
            put_words(out, o->choices);
            (void)ek_buf_puts(out, "'");
        }
        (void)ek_buf_puts(out, "\n");
    }
    if (!v->word)
        return;
    (void)ek_buf_printf(out, "complete -c evenkeelctl -n '__fish_seen_subcommand_from %s'",
                        v->name);
    if (v->words) {
        (void)ek_buf_puts(out, " -a '");
        put_words(out, v->words);
        (void)ek_buf_puts(out, "'\n");
    } else {
        (void)ek_buf_puts(out, " -F\n");
    }
}

static void fish_options(struct ek_buf *out)
{
    const struct args_option *o;
    for (uint32_t i = 0; (o = args_option_at(i)); i++) {
        (void)ek_buf_puts(out, "complete -c evenkeelctl");
        if (o->letter)
            (void)ek_buf_printf(out, " -s %c", o->letter);
        (void)ek_buf_printf(out, " -l %s%s -d '", o->name,
                            !o->takes                        ? ""
                            : strcmp(o->name, "socket") == 0 ? " -r -F"
                                                             : " -x");
        put_quoted(out, o->about, false);
        (void)ek_buf_puts(out, "'");
        if (strcmp(o->name, "server") == 0)
            (void)ek_buf_puts(out, " -a \"(evenkeelctl --json status 2>/dev/null | string match -r "
                                   "'^      \\\"name\\\": \\\"(.*)\\\"' -g)\"");
        (void)ek_buf_puts(out, "\n");
    }
}

static void write_fish(struct ek_buf *out)
{
    const struct args_command *c;
    const struct verb *v;
    (void)ek_buf_puts(out, "# fish completion for evenkeelctl; written by evenkeelctl "
                           "--print-completion fish\nset -l verbs ");
    put_commands(out);
    (void)ek_buf_puts(out, "\ncomplete -c evenkeelctl -f\n");
    for (uint32_t i = 0; (c = args_command_at(i)); i++) {
        if (is_first(i))
            fish_first(out, c->word, c->sub ? "show or change limits" : c->about);
    }
    for (uint32_t i = 0; (v = verb_at(i)); i++)
        fish_first(out, v->name, v->about);
    for (uint32_t i = 0; (c = args_command_at(i)); i++) {
        if (!c->sub)
            continue;
        (void)ek_buf_printf(out,
                            "complete -c evenkeelctl -n '__fish_seen_subcommand_from %s; and not "
                            "__fish_seen_subcommand_from ",
                            c->word);
        put_subs(out);
        (void)ek_buf_printf(out, "' -a %s -d '", c->sub);
        put_quoted(out, c->about, false);
        (void)ek_buf_puts(out, "'\n");
    }
    (void)ek_buf_printf(out,
                        "complete -c evenkeelctl -n '__fish_seen_subcommand_from set pin unpin' -a "
                        "'%s= %s='\n",
                        args_knob(CTL_SEQS), args_knob(CTL_TOKENS));
    fish_options(out);
    for (uint32_t i = 0; (v = verb_at(i)); i++)
        fish_verb(out, v);
}

int complete_write(const char *shell, struct ek_buf *out)
{
    if (strcmp(shell, "bash") == 0)
        write_bash(out);
    else if (strcmp(shell, "zsh") == 0)
        write_zsh(out);
    else if (strcmp(shell, "fish") == 0)
        write_fish(out);
    else
        return -EINVAL;
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
