#include "supervisor/exit_file.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/child.h"

void exit_file_read(const char *control_socket, pid_t pid, struct child_exit *e)
{
    char path[300];
    const char *slash = strrchr(control_socket, '/');
    int dir = slash ? (int)(slash - control_socket) : 1;
    int n = snprintf(path, sizeof(path), "%.*s/exit.json", dir, slash ? control_socket : ".");
    if (n < 0 || (size_t)n >= sizeof(path))
        return;
    json_t *root = json_load_file(path, 0, NULL);
    json_int_t code = json_integer_value(json_object_get(root, "code"));
    if (json_integer_value(json_object_get(root, "pid")) == pid && code >= 0 && code <= 255 &&
        json_is_integer(json_object_get(root, "code")))
        *e = (struct child_exit){.known = true, .code = (int)code};
    json_decref(root);
}
