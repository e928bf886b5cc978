/* The text of a file of forms, written and read (forms_file.h). Called by start_forms.c. */
#include "server/forms_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "common/buf.h"
#include "kernels/backend.h"
#include "server/model/model.h"

#define HEAD     "evenkeel cpu forms "
#define VERSION  "2" /* 1: "avx2" expanded numbers of 8 and 4 bits, which gave other bits */
#define SUM_LINE 13u /* "sum 0badc0de\n" */

static uint32_t forms_crc(const char *text, size_t len)
{
    return (uint32_t)crc32(crc32(0, NULL, 0), (const unsigned char *)text, (uInt)len);
}

int forms_file_write(const struct forms_about *about, const struct ek_forms *forms,
                     struct ek_buf *out)
{
    const size_t begin = out->len;

    (void)ek_buf_printf(out, HEAD VERSION "\ncpu %s\ntier %s\n", about->cpu, about->tier);
    for (uint32_t i = 0; i < forms->count; i++) {
        const struct ek_form *f = &forms->form[i];
        (void)ek_buf_printf(out, "%s in %s, %u x %u, group %u: %s %.3f\n",
                            model_dtype_name((enum ek_dtype)f->dtype),
                            model_dtype_name((enum ek_dtype)f->graph), f->rows, f->cols, f->group,
                            f->name, f->times);
    }
    if (ek_buf_ok(out))
        (void)ek_buf_printf(out, "sum %08x\n", forms_crc(out->data + begin, out->len - begin));
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static bool type_of(const char *name, uint32_t *ret_type)
{
    for (uint32_t t = EK_F32; t <= EK_F4_E2M1; t++)
        if (strcmp(name, model_dtype_name((enum ek_dtype)t)) == 0) {
            *ret_type = t;
            return true;
        }
    return false;
}

/* A line without its end. */
static bool read_form(const char *line, struct ek_form *ret_form)
{
    char type[16], graph[16];
    struct ek_form f = {0};
    int end = 0;

    _Static_assert(EK_FORM_NAME == 24, "the width below");
    if (sscanf(line, "%15s in %15[a-z0-9], %9u x %9u, group %9u: %23s %lf%n", type, graph, &f.rows,
               &f.cols, &f.group, f.name, &f.times, &end) != 7 ||
        line[end] != '\0' || !(f.times > 0) || !type_of(type, &f.dtype) ||
        !type_of(graph, &f.graph))
        return false;
    *ret_form = f;
    return true;
}

/* Takes a line off *at, which ends before `end`; false when there is none. */
static bool take_line(const char **at, const char *end, char *line, size_t size)
{
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));

    if (!stop || (size_t)(stop - *at) >= size)
        return false;
    memcpy(line, *at, (size_t)(stop - *at));
    line[stop - *at] = '\0';
    *at = stop + 1;
    return true;
}

/* Whether the line is `key` and this. */
static bool forms_file_says(const char *line, const char *key, const char *what)
{
    const size_t len = strlen(key);
    return strncmp(line, key, len) == 0 && strcmp(line + len, what) == 0;
}

const char *forms_file_read(const char *text, size_t len, const struct forms_about *about,
                            struct ek_forms *ret_forms)
{
    struct ek_forms forms = {0};
    char line[256], sum[SUM_LINE + 1];
    const char *at = text, *end = text + len - (len > SUM_LINE ? SUM_LINE : len);

    if (!take_line(&at, end, line, sizeof(line)) || strncmp(line, HEAD, strlen(HEAD)) != 0)
        return "damaged";
    if (!forms_file_says(line, HEAD, VERSION))
        return "of another version";
    (void)snprintf(sum, sizeof(sum), "sum %08x\n", forms_crc(text, (size_t)(end - text)));
    if (memcmp(end, sum, SUM_LINE) != 0)
        return "damaged";
    if (!take_line(&at, end, line, sizeof(line)) || !forms_file_says(line, "cpu ", about->cpu))
        return "of another CPU";
    if (!take_line(&at, end, line, sizeof(line)) || !forms_file_says(line, "tier ", about->tier))
        return "of another instruction tier";
    while (at < end) {
        if (forms.count == EK_MOST_FORMS || !take_line(&at, end, line, sizeof(line)) ||
            !read_form(line, &forms.form[forms.count]))
            return "damaged";
        forms.count++;
    }
    *ret_forms = forms;
    return NULL;
}

uint32_t forms_file_sum(const struct ek_forms *forms)
{
    uLong sum = forms->used > 0; /* 0 without any */

    for (uint32_t i = 0; i < forms->used; i++) {
        const struct ek_form *f = &forms->form[i];
        char line[96];
        int n = snprintf(line, sizeof(line), "%u %u %u %u %u %s\n", f->dtype, f->graph, f->rows,
                         f->cols, f->group, f->name);
        sum = crc32(sum, (const unsigned char *)line, n > 0 ? (uInt)n : 0);
    }
    return (uint32_t)sum;
}
