#include "server/text/bert.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include <utf8proc.h>

#include "common/buf.h"
#include "server/text/utf8.h"

struct range {
    uint32_t from, to;
};

static bool in(const struct range *table, size_t count, uint32_t cp)
{
    size_t lo = 0, hi = count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > table[mid].to)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < count && cp >= table[lo].from;
}

#define IN(table, cp) in(table, sizeof(table) / sizeof((table)[0]), cp)

/* Format characters younger than Unicode 8. */
static const struct range young_formats[] = {
    {0x890, 0x891}, {0x8E2, 0x8E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};

/* Marks without a width that are younger; those that normalize.c passes over are among them. */
static const struct range young_marks[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8E1},     {0x9FE, 0x9FE},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
    {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0x180F, 0x180F},   {0x1885, 0x1886},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFB},
    {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},
    {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11073, 0x11074},
    {0x110C2, 0x110C2}, {0x111C9, 0x111C9}, {0x111CF, 0x111CF}, {0x1123E, 0x1123E},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x113BB, 0x113E2}, {0x11438, 0x1143F},
    {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1145E, 0x1145E}, {0x1182F, 0x1183A},
    {0x1193B, 0x1193E}, {0x11943, 0x11943}, {0x119D4, 0x119E0}, {0x11A01, 0x11A0A},
    {0x11A33, 0x11A3E}, {0x11A47, 0x11A5B}, {0x11A8A, 0x11A99}, {0x11C30, 0x11D47},
    {0x11D90, 0x11D97}, {0x11EF3, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13440, 0x13455},
    {0x1611E, 0x1612F}, {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF46},
    {0x1E000, 0x1E02A}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E944, 0x1E94A}};

static const struct range ideographs[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},  {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};

static bool is_control(uint32_t cp)
{
    if (cp < 0x7F)
        return cp < 0x20 && cp != '\t' && cp != '\n' && cp != '\r';
    utf8proc_category_t c = utf8proc_category((int32_t)cp);
    if (c == UTF8PROC_CATEGORY_CF)
        return !IN(young_formats, cp);
    return cp == 0xFFFD || c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CO;
}

int bert_clean(const char *s, size_t len, struct ek_buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        if (!is_control(cp)) {
            bool space = utf8_is_space(cp);
            (void)ek_buf_add(out, space ? " " : s + i, space ? 1 : size);
        }
        i += size;
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int bert_spaced(const char *s, size_t len, struct ek_buf *out)
{
    size_t done = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        if (size >= 3 && IN(ideographs, cp)) {
            (void)ek_buf_add(out, s + done, i - done);
            (void)ek_buf_puts(out, " ");
            (void)ek_buf_add(out, s + i, size);
            (void)ek_buf_puts(out, " "); /* a failure shows in the last append */
            done = i + size;
        }
        i += size;
    }
    return ek_buf_add(out, s + done, len - done);
}

int bert_unmarked(const char *s, size_t len, struct ek_buf *out)
{
    size_t done = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        if (size > 1 && (cp == 0x1734 || (utf8proc_category((int32_t)cp) == UTF8PROC_CATEGORY_MN &&
                                          !IN(young_marks, cp)))) {
            (void)ek_buf_add(out, s + done, i - done);
            done = i + size;
        }
        i += size;
    }
    return ek_buf_add(out, s + done, len - done);
}
