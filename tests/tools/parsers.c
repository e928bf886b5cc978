/*
 * Prints which parsers are chosen by chat templates, for tools/check-templates.py: a line
 * "FILE TOOLS THINKING" for each file that is named. A template that cannot be read is "-".
 */
#include <stdio.h>

#include "common/err.h"
#include "server/text/answer/parsers.h"
#include "server/text/chat.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct chat *c = NULL;
        struct ek_fault fault = {0};
        if (chat_load("/nowhere", argv[i], &c, &fault) < 0)
            (void)printf("%s - -\n", argv[i]);
        else
            (void)printf("%s %s %s\n", argv[i], parsers_tools(c, NULL), parsers_thinking(c));
        chat_free(c);
    }
    return argc > 1 ? 0 : 2;
}
