/* Preloaded by test_product_forms.py: EVENKEEL_CPU_ISA is there for the process that was started
 * with it and not for those that it forks, as a measurement that turns out otherwise the next time.
 */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

extern char **environ;
static pid_t first;

__attribute__((constructor)) static void begin(void)
{
    first = getpid();
}

char *getenv(const char *name)
{
    const size_t len = strlen(name);

    if (first && getpid() != first && strcmp(name, "EVENKEEL_CPU_ISA") == 0)
        return NULL;
    for (char **at = environ; at && *at; at++)
        if (strncmp(*at, name, len) == 0 && (*at)[len] == '=')
            return *at + len + 1;
    return NULL;
}
