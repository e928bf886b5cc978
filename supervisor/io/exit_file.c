/*
 * Reads exit.json for servers/ended.c and life.c. The file counts only if it names the pid that
 * ended, or its parent did (mpirun starts the servers); it is opened without following links and
 * bounded in size.
 */
#include "supervisor/io/exit_file.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/file.h"
#include "supervisor/io/child.h"

#define EXIT_FILE_MOST 65536u /* bytes; a real one has some hundred */

/* The file if it speaks of this pid, or of a server that this one (mpirun) started; NULL else.
 * Servers may write in its directory: what lies there may be anything. */
static json_t *exit_file_load(const char *control_socket, pid_t pid)
{
    char path[300];
    const char *slash = strrchr(control_socket, '/');
    int dir = slash ? (int)(slash - control_socket) : 1;
    int n = snprintf(path, sizeof(path), "%.*s/exit.json", dir, slash ? control_socket : ".");
    if (n < 0 || (size_t)n >= sizeof(path))
        return NULL;
    struct ek_buf text = {0};
    json_t *root = NULL;
    if (ek_file_read_regular(path, EXIT_FILE_MOST, &text) == 0 && text.data)
        root = json_loadb(text.data, text.len, 0, NULL);
    ek_buf_done(&text);
    if (json_integer_value(json_object_get(root, "pid")) == pid ||
        json_integer_value(json_object_get(root, "launcher")) == pid)
        return root;
    json_decref(root);
    return NULL;
}

void exit_file_read(const char *control_socket, pid_t pid, struct child_exit *e)
{
    json_t *root = exit_file_load(control_socket, pid);
    const json_t *value = json_object_get(root, "code");
    json_int_t code = json_integer_value(value);
    if (json_is_integer(value) && code >= 0 && code <= 255)
        *e = (struct child_exit){.known = true, .code = (int)code};
    json_decref(root);
}

void exit_file_why(const char *control_socket, pid_t pid, char *ret_why, size_t size)
{
    json_t *root = exit_file_load(control_socket, pid);
    const char *why = json_string_value(json_object_get(root, "why"));
    (void)snprintf(ret_why, size, "%s", why ? why : ""); /* a longer one is cut */
    json_decref(root);
}
