/*
 * A safetensors file is: 8 bytes header length (little-endian), a JSON header
 * {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, then the data.
 *
 * Checked here: the header lies in the file and is not larger than the format allows; each type is
 * known; the product of a shape does not overflow and agrees with its range; the ranges of a file
 * neither overlap nor leave gaps and end where the file ends; no name comes twice, not in two
 * shards either. Shards are named by an index, whose file names must be plain: nothing outside the
 * directory is opened.
 */
#include "server/model/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "server/model/files.h"
#include "server/model/json.h"

#define INDEX_MOST_BYTES (64u << 20)
#define NAME_MOST        1024u /* bytes of a tensor's name */
#define HEADER_AT        8u    /* bytes before it: its length */

static const char SINGLE[] = "model.safetensors";
static const char INDEX[] = "model.safetensors.index.json";

static const struct type_row {
    const char *name;
    uint32_t bits;
    bool usable;
    enum ek_dtype dtype;
} type_table[] = {
    {"F32", 32, true, EK_F32},      {"F16", 16, true, EK_F16},      {"BF16", 16, true, EK_BF16},
    {.name = "F64", .bits = 64},    {.name = "I64", .bits = 64},    {.name = "I32", .bits = 32},
    {.name = "I16", .bits = 16},    {.name = "I8", .bits = 8},      {.name = "U64", .bits = 64},
    {.name = "U32", .bits = 32},    {.name = "U16", .bits = 16},    {.name = "U8", .bits = 8},
    {.name = "BOOL", .bits = 8},    {.name = "F8_E4M3", .bits = 8}, {.name = "F8_E5M2", .bits = 8},
    {.name = "F8_E8M0", .bits = 8}, {.name = "F4", .bits = 4},      {.name = "C64", .bits = 64},
};

static const struct type_row *type_find(const char *name)
{
    for (size_t i = 0; i < sizeof(type_table) / sizeof(type_table[0]); i++)
        if (name && strcmp(type_table[i].name, name) == 0)
            return &type_table[i];
    return NULL;
}

/* One tensor's entry being read. */
struct tensor_entry {
    const char *file, *name;
    uint64_t data_at, data_bytes;
    struct ek_fault *fault;
};

static int entry_shape(const struct tensor_entry *e, const json_t *shape, struct st_tensor *t,
                       uint64_t *ret_count)
{
    size_t dims = json_array_size(shape);
    if (!json_is_array(shape) || dims > ST_DIMS_MOST)
        return ek_fault_set(e->fault, e->file,
                            "%s: tensor '%.128s' needs a shape of at most %u numbers; the file is "
                            "damaged, download it again",
                            e->file, e->name, ST_DIMS_MOST);
    uint64_t count = 1;
    for (size_t i = 0; i < dims; i++) {
        const json_t *d = json_array_get(shape, i);
        json_int_t v = json_is_integer(d) ? json_integer_value(d) : -1;
        if (v < 0 || __builtin_mul_overflow(count, (uint64_t)v, &count))
            return ek_fault_set(e->fault, e->file,
                                "%s: the shape of tensor '%.128s' is negative or too large; the "
                                "file is damaged, download it again",
                                e->file, e->name);
        t->shape[i] = (uint64_t)v;
    }
    t->dims = (uint8_t)dims;
    *ret_count = count;
    return 0;
}

static int entry_range(const struct tensor_entry *e, const json_t *offsets, uint64_t need_bytes,
                       struct st_tensor *t)
{
    const json_t *b = json_array_get(offsets, 0);
    const json_t *n = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(n) ||
        json_integer_value(b) < 0 || json_integer_value(n) < json_integer_value(b))
        return ek_fault_set(e->fault, e->file,
                            "%s: the data_offsets of tensor '%.128s' are not two growing numbers; "
                            "the file is damaged, download it again",
                            e->file, e->name);
    uint64_t begin = (uint64_t)json_integer_value(b);
    uint64_t end = (uint64_t)json_integer_value(n);
    if (end > e->data_bytes) {
        uint64_t at = 0;
        if (__builtin_add_overflow(end, e->data_at, &at))
            at = UINT64_MAX;
        return ek_fault_set(e->fault, e->file,
                            "%s: tensor '%.128s' ends at byte %" PRIu64 " but the file has %" PRIu64
                            " bytes: it is truncated; download it again",
                            e->file, e->name, at, e->data_at + e->data_bytes);
    }
    if (end - begin != need_bytes)
        return ek_fault_set(e->fault, e->file,
                            "%s: tensor '%.128s' has %" PRIu64 " bytes but its type and shape need "
                            "%" PRIu64 "; the file is damaged, download it again",
                            e->file, e->name, end - begin, need_bytes);
    t->begin = e->data_at + begin;
    t->end = e->data_at + end;
    return 0;
}

static int entry_read(const struct tensor_entry *e, const json_t *value, struct st_tensor *t)
{
    if (e->name[0] == '\0' || strlen(e->name) > NAME_MOST)
        return ek_fault_set(e->fault, e->file,
                            "%s: has a tensor with an empty name or one of more than %u bytes; the "
                            "file is damaged, download it again",
                            e->file, NAME_MOST);
    const char *type = json_string_value(json_object_get(value, "dtype"));
    const struct type_row *row = type_find(type);
    if (!row)
        return ek_fault_set(e->fault, e->file,
                            "%s: tensor '%.128s' has the unknown type '%.16s'; convert the model "
                            "to BF16, F16 or F32",
                            e->file, e->name, type ? type : "");

    uint64_t count = 0, bits = 0;
    int r = entry_shape(e, json_object_get(value, "shape"), t, &count);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow(count, row->bits, &bits) || bits % 8 != 0)
        return ek_fault_set(e->fault, e->file,
                            "%s: tensor '%.128s' is too large for its type; the file is damaged, "
                            "download it again",
                            e->file, e->name);
    t->usable = row->usable;
    t->dtype = row->dtype;
    t->type = row->name;
    return entry_range(e, json_object_get(value, "data_offsets"), bits / 8, t);
}

static int by_begin(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The ranges follow each other without overlap or gap, from the header to the end of the file. */
static int ranges_check(struct st_tensor *t, uint32_t count, const char *file, uint64_t data_at,
                        uint64_t size_bytes, struct ek_fault *fault)
{
    if (count > 0)
        qsort(t, count, sizeof(*t), by_begin);
    uint64_t at = data_at;
    for (uint32_t i = 0; i < count; i++) {
        if (t[i].begin != at)
            return ek_fault_set(fault, file,
                                "%s: tensor '%.128s' begins at byte %" PRIu64 ", %s byte %" PRIu64
                                " where the one before it ends; the file is damaged, download it "
                                "again",
                                file, t[i].name, t[i].begin,
                                t[i].begin < at ? "before" : "leaving a gap after", at);
        at = t[i].end;
    }
    if (at != size_bytes)
        return ek_fault_set(fault, file,
                            "%s: its last tensor ends at byte %" PRIu64 " but the file has %" PRIu64
                            " bytes; the file is damaged, download it again",
                            file, at, size_bytes);
    return 0;
}

static int set_reserve(struct st_set *s, size_t extra, const char *file, struct ek_fault *fault)
{
    size_t need = s->count + extra;
    if (need > ST_TENSORS_MOST)
        return ek_fault_set(fault, file,
                            "%s: brings the model to %zu tensors, more than the %u that are "
                            "allowed; merge stacked or adapter weights first",
                            file, need, ST_TENSORS_MOST);
    if (need <= s->room)
        return 0;
    if (need < (uint64_t)s->room * 2) /* of many files with a few tensors each */
        need = (uint64_t)s->room * 2;
    struct st_tensor *t = realloc(s->tensor, need * sizeof(*t));
    if (!t)
        return -ENOMEM;
    s->tensor = t;
    s->room = (uint32_t)need;
    return 0;
}

static int header_read(struct st_set *s, const struct tensor_entry *file, json_t *root)
{
    size_t most = json_object_size(root);
    int r = set_reserve(s, most, file->file, file->fault);
    if (r < 0)
        return r;

    uint32_t first = s->count;
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue; /* free text */
        struct tensor_entry e = *file;
        e.name = name;
        struct st_tensor t = {.file = s->files};
        r = entry_read(&e, value, &t);
        if (r < 0)
            return r;
        t.name = ek_arena_copy(&s->arena, name, strlen(name));
        if (!t.name)
            return -ENOMEM;
        s->tensor[s->count++] = t;
    }
    struct st_tensor *mine = s->count > first ? &s->tensor[first] : NULL;
    return ranges_check(mine, s->count - first, file->file, file->data_at,
                        file->data_at + file->data_bytes, file->fault);
}

/* Where the header ends and the data begin. */
static int header_find(const char *file_name, const void *data, uint64_t size_bytes,
                       uint64_t *ret_end, struct ek_fault *fault)
{
    const uint8_t *p = data;
    if (size_bytes < HEADER_AT)
        return ek_fault_set(fault, file_name,
                            "%s: has %" PRIu64 " bytes, too few for a header: it is truncated; "
                            "download it again",
                            file_name, size_bytes);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | p[i];
    if (header > ST_HEADER_MOST)
        return ek_fault_set(fault, file_name,
                            "%s: says that its header has %" PRIu64 " bytes, more than the %u that "
                            "are allowed: it is not a safetensors file; download it again",
                            file_name, header, ST_HEADER_MOST);
    if (header > size_bytes - HEADER_AT)
        return ek_fault_set(fault, file_name,
                            "%s: its header ends at byte %" PRIu64 " but the file has %" PRIu64
                            " bytes: it is truncated; download it again",
                            file_name, header + HEADER_AT, size_bytes);
    *ret_end = HEADER_AT + header;
    return 0;
}

/* Adds the tensors of a header whose data lie from data_at to the end of the file. */
static int header_parse(struct st_set *s, const char *file_name, const char *text, size_t len,
                        uint64_t data_at, uint64_t size_bytes, struct ek_fault *fault)
{
    json_t *root = NULL;
    int r = model_json_parse(file_name, text, len, &root, fault);
    if (r < 0)
        return r;
    struct tensor_entry e = {
        .file = file_name, .data_at = data_at, .data_bytes = size_bytes - data_at, .fault = fault};
    r = header_read(s, &e, root);
    json_decref(root);
    return r;
}

int st_parse(struct st_set *s, const char *file_name, const void *data, uint64_t size_bytes,
             struct ek_fault *fault)
{
    uint64_t end = 0;
    int r = header_find(file_name, data, size_bytes, &end, fault);
    return r < 0 ? r
                 : header_parse(s, file_name, (const char *)data + HEADER_AT,
                                (size_t)(end - HEADER_AT), end, size_bytes, fault);
}

int st_sort(struct st_set *s, struct ek_fault *fault)
{
    if (s->count > 0)
        qsort(s->tensor, s->count, sizeof(*s->tensor), by_name);
    for (uint32_t i = 1; i < s->count; i++)
        if (strcmp(s->tensor[i - 1].name, s->tensor[i].name) == 0)
            return ek_fault_set(fault, st_file_name(s, &s->tensor[i]),
                                "%s: tensor '%.128s' is in %s too; keep one of the two",
                                st_file_name(s, &s->tensor[i]), s->tensor[i].name,
                                st_file_name(s, &s->tensor[i - 1]));
    return 0;
}

struct st_tensor *st_find(const struct st_set *s, const char *name)
{
    struct st_tensor key = {.name = name};
    return s->count == 0 ? NULL : bsearch(&key, s->tensor, s->count, sizeof(*s->tensor), by_name);
}

const char *st_file_name(const struct st_set *s, const struct st_tensor *t)
{
    return t->file < s->files ? s->file_name[t->file] : SINGLE;
}

/* Room for one more file. It doubles: an index may name many. */
static int files_reserve(struct st_set *s)
{
    const size_t room = s->files ? (size_t)s->files * 2 : 1;
    if (s->files & (s->files - 1))
        return 0; /* it doubled when there were a power of two */
    struct ek_weight_file *file = realloc(s->file, room * sizeof(*file));
    if (!file)
        return -ENOMEM;
    s->file = file;
    const char **names = realloc(s->file_name, room * sizeof(*names));
    if (!names)
        return -ENOMEM;
    s->file_name = names;
    return 0;
}

/* A header on its way into the bundle: what is parsed here is what another process will get. `r` is
 * what became of the mapping. */
static int header_keep(struct st_set *s, struct ek_bundle_read *read, const char *name,
                       const struct ek_weight_file *f, int r, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    if (ek_bundle_find(s->bundle, read->path))
        return ek_fault_set(fault, name,
                            "%s: is named as weights, and is another file of the model", name);
    if (r == 0)
        r = header_find(name, f->data, f->size_bytes, &read->at, fault);
    if (r == 0)
        r = ek_buf_add(&text, (const char *)f->data + HEADER_AT, (size_t)(read->at - HEADER_AT));
    r = ek_bundle_keep(s->bundle, read, r, &text, fault);
    if (r == 0)
        r = header_parse(s, name, text.data, text.len, read->at, f->size_bytes, fault);
    ek_buf_done(&text);
    return r;
}

/* A header out of the bundle, and whether the file is the one that it was read of. */
static int header_take(struct st_set *s, const struct ek_bundle_read *read, const char *name,
                       const struct ek_weight_file *f, struct ek_fault *fault)
{
    const struct ek_bundle_part *p = ek_bundle_find(s->bundle, read->path);
    struct ek_buf text = {0};
    if (!p || (!p->is_fault && memcmp(&p->file, &read->file, sizeof(p->file)) != 0))
        return ek_fault_set(fault, name,
                            "%s: is not the file that it was when its header was read; start "
                            "again when nothing writes to the model's directory",
                            name);
    if (!p->is_fault &&
        (p->at < HEADER_AT || p->at > f->size_bytes || p->at - HEADER_AT > ST_HEADER_MOST))
        return ek_fault_set(fault, name, "%s: its data cannot begin at byte %" PRIu64, name, p->at);
    int r = ek_bundle_take(s->bundle, read, &text, fault);
    if (r == 0)
        r = header_parse(s, name, text.data, text.len, p->at, f->size_bytes, fault);
    ek_buf_done(&text);
    return r;
}

static int header_bundled(struct st_set *s, struct ek_bundle_read *read, const char *name,
                          const struct ek_weight_file *f, int mapped, struct ek_fault *fault)
{
    if (ek_bundle_is_open(s->bundle))
        return header_keep(s, read, name, f, mapped, fault);
    return mapped < 0 ? mapped : header_take(s, read, name, f, fault);
}

static int file_add(struct st_set *s, const char *dir, const char *name, struct ek_fault *fault)
{
    struct ek_weight_file f = {0};
    struct ek_fault own = {0};
    char path[PATH_MAX];
    struct ek_bundle_read read = {
        .path = path, .what = name, .field = name, .is_json = true, .most_bytes = ST_HEADER_MOST};
    char *copy = ek_arena_copy(&s->arena, name, strlen(name));
    if (!copy)
        return -ENOMEM;
    if (!fault)
        fault = &own; /* the bundle keeps it */
    int r = files_reserve(s);
    if (r < 0)
        return r;
    r = model_file_map(dir, name, &f, &read.file, fault); /* says when the path is too long */
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (s->bundle && r != -ENOMEM)
        r = header_bundled(s, &read, copy, &f, r, fault);
    else if (r == 0)
        r = st_parse(s, copy, f.data, f.size_bytes, fault);
    if (f.data) {
        s->file[s->files] = f; /* unmapped by st_done() also after a fault */
        s->file_name[s->files] = copy;
        s->files++;
    }
    return r;
}

/* Opens the file of that name at its first mention; `met` has the names of those before. */
static int shard_meet(struct st_set *s, const char *dir, const char *name, json_t *met,
                      struct ek_fault *fault)
{
    if (json_object_get(met, name))
        return 0;
    if (!model_name_ok(name))
        return ek_fault_set(fault, "weight_map",
                            "%s: weight_map names the file '%.128s'; only plain names of files in "
                            "the model directory are allowed",
                            INDEX, name);
    if (s->files >= ST_FILES_MOST)
        return ek_fault_set(fault, "weight_map",
                            "%s: weight_map names more than %u files; merge some", INDEX,
                            ST_FILES_MOST);
    if (json_object_set_new(met, name, json_true()) < 0)
        return -ENOMEM;
    return file_add(s, dir, name, fault);
}

/* Opens all files that a weight_map names. */
static int shards_open(struct st_set *s, const char *dir, json_t *map, struct ek_fault *fault)
{
    json_t *met = json_object(), *value;
    const char *tensor;
    int r = met ? 0 : -ENOMEM;
    json_object_foreach(map, tensor, value)
    {
        if (r == 0 && !json_is_string(value))
            r = ek_fault_set(fault, "weight_map",
                             "%s: weight_map gives no file name for tensor '%.128s'; download "
                             "it again",
                             INDEX, tensor);
        if (r == 0)
            r = shard_meet(s, dir, json_string_value(value), met, fault);
        if (r < 0)
            break;
    }
    json_decref(met);
    return r;
}

static int index_read(struct st_set *s, const char *dir, const json_t *root, struct ek_fault *fault)
{
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return ek_fault_set(fault, "weight_map",
                            "%s: has no weight_map (tensor: file); download it again", INDEX);
    const char *tensor;
    json_t *value;
    int r = shards_open(s, dir, map, fault);
    if (r == 0)
        r = st_sort(s, fault);
    if (r < 0)
        return r;
    json_object_foreach(map, tensor, value)
    {
        const struct st_tensor *t = st_find(s, tensor);
        if (!t || strcmp(st_file_name(s, t), json_string_value(value)) != 0)
            return ek_fault_set(
                fault, "weight_map",
                "%s: weight_map says that tensor '%.128s' is in %s, but it is %s%s; "
                "download both again",
                INDEX, tensor, json_string_value(value), t ? "in " : "not there",
                t ? st_file_name(s, t) : "");
    }
    return 0;
}

int st_open(struct st_set *s, const char *dir, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    json_t *root = NULL;
    int r;

    if (model_file_exists(s->bundle, dir, SINGLE)) {
        r = file_add(s, dir, SINGLE, fault);
        if (r == 0)
            r = st_sort(s, fault);
        goto out;
    }
    if (!model_file_exists(s->bundle, dir, INDEX)) {
        (void)ek_fault_set(fault, SINGLE,
                           "%s: neither it nor %s is in %s; download the model's safetensors files "
                           "(pickled .bin files are not read)",
                           SINGLE, INDEX, dir);
        r = -ENOENT;
        goto out;
    }
    r = model_file_read(s->bundle, dir, INDEX, INDEX_MOST_BYTES, &text, fault);
    if (r < 0)
        goto out;
    r = model_json_parse(INDEX, text.data, text.len, &root, fault);
    if (r < 0)
        goto out;
    r = index_read(s, dir, root, fault);
out:
    json_decref(root);
    ek_buf_done(&text);
    return r;
}

static float safetensors_number_at(enum ek_dtype t, const char *at)
{
    float f = 0.0f;
    uint16_t h;
    uint32_t bits;

    if (t == EK_F32) {
        memcpy(&f, at, sizeof(f));
        return f;
    }
    memcpy(&h, at, sizeof(h));
    if (t == EK_BF16) {
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, sizeof(f));
        return f;
    }
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    f = exponent == 31 ? NAN
                       : ldexpf((float)(exponent ? fraction + 1024 : fraction),
                                (exponent ? exponent : 1) - 25);
    return h & 0x8000u ? -f : f;
}

void st_numbers(enum ek_dtype t, const void *from, uint64_t count, float *ret_numbers)
{
    const uint64_t bytes = ek_dtype_bits(t) / 8;
    for (uint64_t i = 0; i < count; i++)
        ret_numbers[i] = safetensors_number_at(t, (const char *)from + i * bytes);
}

int st_number(const struct st_set *s, const struct st_tensor *t, float *ret_number)
{
    const struct ek_weight_file *file = &s->file[t->file];
    const uint64_t bytes = ek_dtype_bits(t->dtype) / 8;
    uint64_t count = 1;

    for (uint32_t i = 0; i < t->dims; i++)
        count *= t->shape[i];
    if (!t->usable || count != 1 || file->size_bytes < bytes || t->begin > file->size_bytes - bytes)
        return -EBADMSG;
    *ret_number = safetensors_number_at(t->dtype, (const char *)file->data + t->begin);
    return 0;
}

void st_done(struct st_set *s)
{
    for (uint32_t i = 0; i < s->files; i++)
        model_file_unmap(&s->file[i]);
    free(s->file);
    free(s->file_name);
    free(s->tensor);
    ek_arena_done(&s->arena);
    *s = (struct st_set){0};
}
