/*
 * Where in a schema its reader is, as a JSON pointer: for faults, which name it, and to find what a
 * reference points to. Called by schema.c and by the readers of single types.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/schema_inside.h"

__attribute__((format(printf, 4, 0))) static int
refuse_as(struct schema_reader *r, bool never, const char *keyword, const char *fmt, va_list ap)
{
    char text[256], pointer[sizeof(r->path) + 48];
    struct ek_fault *f = r->fault;

    (void)vsnprintf(text, sizeof(text), fmt, ap);
    (void)snprintf(pointer, sizeof(pointer), "%s%s%.40s", r->path, keyword ? "/" : "",
                   keyword ? keyword : "");
    /* The field holds less: then its tail, which tells more. */
    size_t len = strlen(pointer), most = f ? sizeof(f->field) - 4 : 0;
    char field[sizeof(f->field)];
    if (f && len > most)
        (void)snprintf(field, sizeof(field), "...%s", pointer + len - most);
    else
        (void)snprintf(field, sizeof(field), "%.60s", pointer);
    ek_fault_write(f, field, "%s (at %s of the schema)", text, pointer[0] ? pointer : "the root");
    r->never = never;
    return -EBADMSG;
}

int schema_refuse(struct schema_reader *r, const char *keyword, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int code = refuse_as(r, false, keyword, fmt, ap);
    va_end(ap);
    return code;
}

int schema_contradicts(struct schema_reader *r, const char *keyword, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int code = refuse_as(r, true, keyword, fmt, ap);
    va_end(ap);
    return code;
}

bool schema_is_never(struct schema_reader *r, int code)
{
    bool never = code == -EBADMSG && r->never;
    r->never = false;
    return never;
}

static void pointer_append(struct schema_reader *r, const char *text)
{
    size_t at = strlen(r->path);
    for (; *text && at + 3 < sizeof(r->path); text++) {
        if (*text == '~' || *text == '/') {
            r->path[at++] = '~';
            r->path[at++] = *text == '~' ? '0' : '1';
        } else {
            r->path[at++] = *text;
        }
    }
    r->path[at] = '\0';
}

size_t schema_enter(struct schema_reader *r, const char *keyword, const char *name)
{
    size_t was = strlen(r->path);
    for (int i = 0; i < 2; i++) {
        const char *part = i == 0 ? keyword : name;
        size_t at = strlen(r->path);
        if (!part || !*part || at + 2 >= sizeof(r->path))
            continue;
        r->path[at] = '/';
        r->path[at + 1] = '\0';
        pointer_append(r, part);
    }
    return was;
}

void schema_leave(struct schema_reader *r, size_t was)
{
    r->path[was] = '\0';
}

/* One step of a pointer: the unescaped name up to the next slash. */
static const json_t *pointer_step(const json_t *at, const char *part, size_t len)
{
    char name[256];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = part[i];
        if (c == '~' && i + 1 < len)
            c = part[++i] == '1' ? '/' : '~';
        else if (c == '%' && i + 2 < len && sscanf(part + i + 1, "%2hhx", (unsigned char *)&c) == 1)
            i += 2;
        if (n + 1 >= sizeof(name))
            return NULL;
        name[n++] = c;
    }
    name[n] = '\0';
    if (json_is_array(at)) {
        char *end;
        unsigned long i = strtoul(name, &end, 10);
        return *end || end == name ? NULL : json_array_get(at, i);
    }
    return json_object_get(at, name);
}

const json_t *schema_find(struct schema_reader *r, const char *ref)
{
    const json_t *at = r->root;

    (void)schema_pay(r, 1 + strlen(ref) / 8);
    if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) {
        (void)schema_refuse(r, "$ref",
                            "only references into the schema itself are offered (#/...)");
        return NULL;
    }
    for (const char *part = ref + 1; at && *part == '/';) {
        size_t len = strcspn(part + 1, "/");
        at = pointer_step(at, part + 1, len);
        part += 1 + len;
    }
    if (!at)
        (void)schema_refuse(r, "$ref", "there is nothing at %.100s", ref);
    return at;
}
