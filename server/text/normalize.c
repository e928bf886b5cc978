/*
 * The normalizer of a tokenizer, run by tokenizer.c over each prompt and by tokload.c over added
 * tokens. Steps alternate between the caller's two buffers; one that would change nothing makes no
 * copy, which is the usual case for NFC over ASCII. utf8proc decomposes and composes, but marks are
 * sorted here: its own sort is quadratic in a run of marks, and a client chooses the run.
 */
#include "server/text/normalize.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "server/text/charsmap.h"
#include "server/text/rx.h"
#include "server/text/utf8.h"

#define GROWTH_MOST 64u  /* times its bytes a text may become; NFKC makes 11 of 1 at most */
#define CLASSES     256u /* of combining marks */
#define FEW_MARKS   24u  /* sorted by insertion up to this many */

/* Characters that a form leaves alone, that start anew and join nothing before them. Only ranges
 * worth skipping; everything else goes the long way and comes out right as well. */
struct text_range {
    uint32_t from, to;
    uint8_t forms; /* bit per norm_kind */
};

#define C  (1u << NORM_NFC)
#define D  (1u << NORM_NFD)
#define KC (1u << NORM_NFKC)
#define KD (1u << NORM_NFKD)

static const struct text_range inert[] = {
    {0x0000, 0x009F, C | D | KC | KD},
    {0x00A0, 0x00BF, C | D},
    {0x00C0, 0x02FF, C},
    {0x0388, 0x03CF, C},
    {0x0400, 0x0481, C | KC},
    {0x05D0, 0x05EA, C | D | KC | KD},
    {0x0621, 0x063A, C | KC},
    {0x0641, 0x064A, C | D | KC | KD},
    {0x2010, 0x2010, C | D | KC | KD},
    {0x2011, 0x2011, C | D},
    {0x2012, 0x2016, C | D | KC | KD},
    {0x2018, 0x2022, C | D | KC | KD},
    {0x3001, 0x3029, C | D | KC | KD},
    {0x3041, 0x3096, C | KC},
    {0x30A0, 0x30FE, C | KC},
    {0x3400, 0x9FFF, C | D | KC | KD},
    {0xAC00, 0xD7A3, C | KC},
    {0x1F300, 0x1F64F, C | D | KC | KD},
};

#undef C
#undef D
#undef KC
#undef KD

/* Characters younger than the tables that the reference library normalizes with (Unicode 9): there
 * they are no marks and decompose into nothing, whatever the local tables say. */
static const struct {
    uint32_t from, to;
} young[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},
    {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},   {0x1CF7, 0x1CF7},
    {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},
    {0xA8FF, 0xA8FF},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9},
    {0x111CE, 0x111CF}, {0x1133B, 0x1133B}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E},
    {0x1182C, 0x1183A}, {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193B, 0x1193E},
    {0x11940, 0x11940}, {0x11942, 0x11943}, {0x119D1, 0x119D7}, {0x119DA, 0x119E0},
    {0x119E4, 0x119E4}, {0x11A01, 0x11A0A}, {0x11A33, 0x11A39}, {0x11A3B, 0x11A3E},
    {0x11A47, 0x11A47}, {0x11A51, 0x11A5B}, {0x11A8A, 0x11A99}, {0x11D31, 0x11D36},
    {0x11D3A, 0x11D3A}, {0x11D3C, 0x11D3D}, {0x11D3F, 0x11D45}, {0x11D47, 0x11D47},
    {0x11D8A, 0x11D8E}, {0x11D90, 0x11D91}, {0x11D93, 0x11D97}, {0x11EF3, 0x11EF6},
    {0x11F41, 0x11F42}, {0x1611E, 0x1612F}, {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87},
    {0x16FE4, 0x16FE4}, {0x16FF0, 0x16FF1}, {0x1CF00, 0x1CF2D}, {0x1CF30, 0x1CF46},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool is_young(uint32_t cp)
{
    if (cp < young[0].from)
        return false;
    size_t lo = 0, hi = sizeof(young) / sizeof(young[0]);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > young[mid].to)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof(young) / sizeof(young[0]) && cp >= young[lo].from;
}

static bool is_inert(enum norm_kind form, uint32_t cp)
{
    if (cp < 0xA0)
        return true;
    for (size_t i = 1; i < sizeof(inert) / sizeof(inert[0]) && inert[i].from <= cp; i++) {
        if (cp <= inert[i].to)
            return inert[i].forms >> form & 1;
    }
    return is_young(cp);
}

void normalizer_done(struct normalizer *n)
{
    for (uint32_t i = 0; i < n->steps; i++) {
        rx_free(n->step[i].rx);
        free(n->step[i].text);
    }
    *n = (struct normalizer){0};
}

static uint32_t mark_class(int32_t cp)
{
    return (uint32_t)utf8proc_get_property(cp)->combining_class & 0xFF;
}

/* Sorts a run of marks by class, equal ones as they were. tmp has room for n. */
static void order_marks(int32_t *cp, size_t n, int32_t *tmp)
{
    if (n <= FEW_MARKS) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = cp[i];
            size_t k = i;
            for (; k > 0 && mark_class(cp[k - 1]) > mark_class(v); k--)
                cp[k] = cp[k - 1];
            cp[k] = v;
        }
        return;
    }
    size_t at[CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        at[mark_class(cp[i]) + 1]++;
    for (size_t i = 0; i < CLASSES; i++)
        at[i + 1] += at[i];
    for (size_t i = 0; i < n; i++)
        tmp[at[mark_class(cp[i])]++] = cp[i];
    memcpy(cp, tmp, n * sizeof(*cp));
}

static void order_all(int32_t *cp, size_t n, int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && mark_class(cp[run]) != 0)
            run++;
        if (run > i + 1)
            order_marks(cp + i, run - i, tmp);
        i = run + 1;
    }
}

/* Decomposes s into *ret_cp, an array the caller frees. */
static int decompose(const char *s, size_t len, int options, int32_t **ret_cp, size_t *ret_count)
{
    int32_t *cp = NULL;
    size_t n = 0, room = 0;
    for (size_t i = 0; i < len;) {
        if (room - n < 32) { /* the longest decomposition has 18 characters */
            size_t more = room ? room * 2 : 64;
            int32_t *grown = realloc(cp, more * sizeof(*cp));
            if (!grown) {
                free(cp);
                return -ENOMEM;
            }
            cp = grown;
            room = more;
        }
        uint32_t c;
        i += utf8_next(s + i, len - i, &c);
        utf8proc_ssize_t k = utf8proc_decompose_char(
            (int32_t)c, cp + n, (utf8proc_ssize_t)(room - n), (utf8proc_option_t)options, NULL);
        if (k < 0 || (size_t)k > room - n) { /* not assigned: it stands for itself */
            cp[n] = (int32_t)c;
            k = 1;
        }
        n += (size_t)k;
    }
    *ret_cp = cp;
    *ret_count = n;
    return 0;
}

/* One stretch that a form may change. */
static int form_stretch(enum norm_kind form, const char *s, size_t len, struct ek_buf *out)
{
    bool compat = form == NORM_NFKC || form == NORM_NFKD;
    bool compose = form == NORM_NFC || form == NORM_NFKC;
    int32_t *cp = NULL;
    size_t n;

    int r = decompose(s, len, UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0), &cp, &n);
    if (r < 0)
        return r;
    assert(cp || n == 0);
    int32_t *tmp = n > FEW_MARKS ? malloc(n * sizeof(*tmp)) : NULL;
    if (n > FEW_MARKS && !tmp) {
        free(cp);
        return -ENOMEM;
    }
    order_all(cp, n, tmp);
    if (compose) {
        utf8proc_ssize_t left =
            utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        n = left > 0 ? (size_t)left : 0;
    }
    for (size_t i = 0; i < n && r == 0; i++) {
        char bytes[UTF8_MOST];
        r = ek_buf_add(out, bytes, utf8_put(bytes, (uint32_t)cp[i]));
    }
    free(tmp);
    free(cp);
    return r;
}

/* A stretch reaches from the inert character before the first other one to the next inert one. */
static int form_run(enum norm_kind form, const char *s, size_t len, struct ek_buf *out)
{
    size_t done = 0, last = 0;
    int r = 0;
    for (size_t i = 0; i < len && r == 0;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        if (is_inert(form, cp)) {
            last = is_young(cp) ? i + size : i; /* nothing joins a young one */
            i += size;
            continue;
        }
        (void)ek_buf_add(out, s + done, last - done); /* a failure shows in the next append */
        for (i += size; i < len; i += size) {
            size = utf8_next(s + i, len - i, &cp);
            if (is_inert(form, cp))
                break;
        }
        r = form_stretch(form, s + last, i - last, out);
        done = last = i; /* the inert one at i is looked at again */
    }
    return r < 0 ? r : ek_buf_add(out, s + done, len - done);
}

static bool form_changes_nothing(enum norm_kind form, const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint64_t word;
        if (len - i >= sizeof(word)) {
            memcpy(&word, s + i, sizeof(word));
            if ((word & 0x8080808080808080ull) == 0) {
                i += sizeof(word);
                continue;
            }
        }
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        if (!is_inert(form, cp))
            return false;
        i += size;
    }
    return true;
}

static int normalize_lower(const char *s, size_t len, struct ek_buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        char bytes[UTF8_MOST];
        i += utf8_next(s + i, len - i, &cp);
        if (cp == 0x130) /* the one character whose lower case is two */
            (void)ek_buf_puts(out, "i\xCC\x87");
        else
            (void)ek_buf_add(out, bytes, utf8_put(bytes, (uint32_t)utf8proc_tolower((int32_t)cp)));
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static int drop_accents(const char *s, size_t len, struct ek_buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        utf8proc_category_t c = utf8proc_category((int32_t)cp);
        bool mark = c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME && !is_young(cp);
        if (!mark)
            (void)ek_buf_add(out, s + i, size);
        i += size;
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static int normalize_replace(const struct norm_step *st, struct rx_work *w, const char *s,
                             size_t len, struct ek_buf *out)
{
    struct rx_span m = {.from = SIZE_MAX, .to = SIZE_MAX};
    size_t done = 0;
    int r;
    while ((r = rx_next(st->rx, w, s, len, &m)) > 0) {
        (void)ek_buf_add(out, s + done, m.from - done);
        (void)ek_buf_add(out, st->text, st->text_len);
        done = m.to;
    }
    return r < 0 ? r : ek_buf_add(out, s + done, len - done);
}

static int to_bytes(const char *s, size_t len, struct ek_buf *out)
{
    for (size_t i = 0; i < len; i++) {
        char bytes[UTF8_MOST];
        (void)ek_buf_add(out, bytes, utf8_put(bytes, utf8_from_byte((uint8_t)s[i])));
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

/* Narrows s instead of copying it. */
static void normalize_strip(const struct norm_step *st, const char **s, size_t *len)
{
    uint32_t cp;
    while (st->left && *len > 0) {
        size_t size = utf8_next(*s, *len, &cp);
        if (!utf8_is_space(cp))
            break;
        *s += size;
        *len -= size;
    }
    while (st->right && *len > 0) {
        size_t at = utf8_prev(*s, *len, &cp);
        if (!utf8_is_space(cp))
            break;
        *len = at;
    }
}

static int step_run(const struct norm_step *st, struct rx_work *w, const char *s, size_t len,
                    struct ek_buf *out)
{
    switch (st->kind) {
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD: return form_run(st->kind, s, len, out);
    case NORM_LOWER: return normalize_lower(s, len, out);
    case NORM_ACCENTS: return drop_accents(s, len, out);
    case NORM_REPLACE: return normalize_replace(st, w, s, len, out);
    case NORM_PREPEND:
        (void)ek_buf_add(out, st->text, st->text_len);
        return ek_buf_add(out, s, len);
    case NORM_BYTES: return to_bytes(s, len, out);
    case NORM_TABLE: return charsmap_run(st->text, st->text_len, s, len, out);
    case NORM_STRIP: break;
    }
    return 0;
}

int normalizer_run(const struct normalizer *n, struct rx_work *w, const char *s, size_t len,
                   struct ek_buf bufs[2], const char **ret_s, size_t *ret_len)
{
    const size_t most = GROWTH_MOST * len + 4096;
    uint32_t side = 0;
    for (uint32_t i = 0; i < n->steps && len > 0; i++) {
        const struct norm_step *st = &n->step[i];
        if (st->kind == NORM_STRIP) {
            normalize_strip(st, &s, &len);
            continue;
        }
        if (st->kind <= NORM_NFKD && form_changes_nothing(st->kind, s, len))
            continue;
        ek_buf_clear(&bufs[side]);
        bufs[side].limit = most;
        int r = step_run(st, w, s, len, &bufs[side]);
        if (r < 0)
            return r == -ENOMEM && bufs[side].cap > most / 4 ? -E2BIG : r; /* room is doubled */
        s = bufs[side].data ? bufs[side].data : "";
        len = bufs[side].len;
        if (st->kind == NORM_TABLE) /* all that follows relies on it, whatever a file says */
            len = utf8_valid(s, len);
        side = !side;
    }
    *ret_s = s;
    *ret_len = len;
    return 0;
}
