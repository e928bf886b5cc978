/* Preloaded: the JSON parser never comes back from a text that says so: it loops, or it waits,
 * which takes no processor time. A thread does so for real in a program that has no switch for it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

json_t *json_loadb(const char *text, size_t len, size_t flags, json_error_t *ret_error)
{
    static const char word[] = "loop for ever";
    json_t *(*real)(const char *, size_t, size_t, json_error_t *) = NULL;
    volatile unsigned long rounds = 0;
    *(void **)&real = dlsym(RTLD_NEXT, "json_loadb");
    while (memmem(text, len, word, sizeof(word) - 1))
        rounds++;
    while (memmem(text, len, "wait for ever", 13))
        (void)pause();
    return real(text, len, flags, ret_error);
}
