/*
 * What a process that parses foreign files hands back: any bytes as a bundle, of which every part
 * lies within them, or behind a zero byte any text as JSON, whose form must be the same value to
 * the parser, and its own form.
 */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "common/json.h"
#include "common/jsonform.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(const char *text, size_t len)
{
    static const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY;
    struct ek_buf form = {0};
    json_error_t e;
    json_t *strict = json_loadb(text, len, flags, &e), *was = ek_json_parse(text, len, flags, &e);
    int r = ek_json_form(text, len, &form);
    /* jansson takes a NUL at the end for the end */
    assert(r == 0 || (r == -EBADMSG && (!strict || memchr(text, 0, len))));
    if (r == 0) {
        assert(ek_json_has_form(form.data, form.len));
        json_t *is = ek_json_parse(form.data, form.len, flags, &e);
        assert(!was || json_equal(was, is));
        json_decref(is);
    }
    json_decref(strict);
    json_decref(was);
    ek_buf_done(&form);
}

static void take(const struct ek_bundle *b, const char *name, bool is_json)
{
    const struct ek_bundle_read read = {
        .path = name, .what = "x", .field = "x", .is_json = is_json, .most_bytes = 1u << 20};
    struct ek_buf out = {0};
    struct ek_fault f = {0};
    int r = ek_bundle_take(b, &read, &out, &f);
    assert(r == 0 || r == -ENOENT || r == -EBADMSG);
    if (r == 0 && is_json)
        assert(ek_json_has_form(out.data, out.len));
    ek_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"d/a.json", "d/b", "d/c", "d/d.json", "a"};
    struct ek_bundle *b = NULL;
    if (size > 0 && data[0] == 0) {
        check_json((const char *)data + 1, size - 1);
        return 0;
    }
    int fd = ek_bundle_make();
    assert(fd >= 0 && (size == 0 || write(fd, data, size) == (ssize_t)size));
    assert(ek_bundle_seal(fd) == 0);
    int r = ek_bundle_open(fd, &b);
    (void)close(fd);
    assert(r == 0 || r == -EBADMSG);
    if (r < 0)
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct ek_bundle_part *p = ek_bundle_find(b, names[i]);
        assert(!p || (p->len <= size && p->text[p->len] == '\0' && strcmp(p->name, names[i]) == 0));
        take(b, names[i], true);
        take(b, names[i], false);
    }
    ek_bundle_free(b);
    return 0;
}
