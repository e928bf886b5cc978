/* Loads a tokenizer's directory for tests, by both ways in which a server does. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "server/text/tokenizer.h"

#define FIXTURES "tests/fixtures/tokenizers"

static struct tokenizer *load(const char *dir)
{
    struct tokenizer *t = NULL;
    struct ek_fault fault = {.msg = ""};
    if (tokenizer_load(dir, &t, &fault) != 0)
        fail_msg("%s: %s", dir, fault.msg);
    return t;
}

/* As two processes do: one reads the files and writes a bundle, the other one has that alone. */
static struct tokenizer *load_apart(const char *dir)
{
    struct tokenizer *first = NULL, *t = NULL;
    struct ek_fault fault = {.msg = ""};
    struct ek_bundle *b = NULL;
    int fd = ek_bundle_make();
    assert_int_equal(ek_bundle_begin(fd, &b), 0);
    assert_int_equal(tokenizer_load_from(b, dir, &first, &fault), 0);
    assert_int_equal(ek_bundle_end(b), 0);
    ek_bundle_free(b);
    tokenizer_free(first);
    assert_int_equal(ek_bundle_seal(fd), 0);
    assert_int_equal(ek_bundle_open(fd, &b), 0);
    if (tokenizer_load_from(b, dir, &t, &fault) != 0)
        fail_msg("%s: %s", dir, fault.msg);
    ek_bundle_free(b);
    assert_int_equal(close(fd), 0);
    return t;
}

static struct tokenizer *(*const sides[])(const char *dir) = {load, load_apart};
#define SIDES (sizeof(sides) / sizeof(sides[0]))

static void file(const char *path, struct ek_buf *out)
{
    char some[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    while ((n = fread(some, 1, sizeof(some), f)) > 0)
        assert_int_equal(ek_buf_add(out, some, n), 0);
    assert_int_equal(fclose(f), 0);
}
