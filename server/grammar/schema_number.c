/*
 * Numbers within bounds, written as decimals: a range of whole numbers, or of numbers with so many
 * digits behind the point, is a tree of digits. Bounds are scaled to whole numbers first; what is
 * written has at most 15 digits, so that reading it as a double keeps it on its side of a bound.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/grammar/schema_inside.h"

#define DIGITS_MOST   15
#define BOUND_MOST    1e15
#define FRACTION_BEST 4          /* digits behind the point when the bounds need no more */
#define HALF_OPEN     1000000000 /* beyond that, a number that is bounded on one side is whole */

#define MULTIPLES_MOST 2000       /* values that are written out */
#define MULTIPLE_MOST  1000000000 /* of which there are such */
#define PLACES_MOST    6u

/* Bounds as written; infinite where there is none. */
struct bounds {
    double low, high;
    bool above, below; /* the bound itself is not allowed */
};

static uint32_t any_digits(struct expr_set *s, uint32_t least, uint32_t most)
{
    return expr_repeat(s, expr_byte(s, '0', '9'), least, most);
}

static bool all(const char *digits, size_t n, char c)
{
    for (size_t i = 0; i < n; i++)
        if (digits[i] != c)
            return false;
    return true;
}

static uint32_t digit(struct expr_set *s, char lo, char hi)
{
    return lo <= hi ? expr_byte(s, (uint8_t)lo, (uint8_t)hi) : EXPR_NEVER;
}

/* n digits, as a number not below (least) or not above lo or hi; NULL = no bound on that side. */
static uint32_t exactly(struct expr_set *s, const char *lo, const char *hi, size_t n)
{
    if (n == 0)
        return EXPR_EMPTY;
    if ((!lo || all(lo, n, '0')) && (!hi || all(hi, n, '9')))
        return any_digits(s, (uint32_t)n, (uint32_t)n);
    char l = lo ? *lo : '0', h = hi ? *hi : '9';
    const char *lo_rest = lo ? lo + 1 : NULL, *hi_rest = hi ? hi + 1 : NULL;
    if (lo && hi && l == h)
        return expr_pair(s, digit(s, l, l), exactly(s, lo_rest, hi_rest, n - 1));
    struct expr_list alt = {.set = s};
    char from = l, to = h;
    if (lo) {
        expr_push(&alt, expr_pair(s, digit(s, l, l), exactly(s, lo_rest, NULL, n - 1)));
        from++;
    }
    if (hi) {
        expr_push(&alt, expr_pair(s, digit(s, h, h), exactly(s, NULL, hi_rest, n - 1)));
        to--;
    }
    if (from <= to)
        expr_push(&alt, expr_pair(s, digit(s, from, to),
                                  any_digits(s, (uint32_t)n - 1, (uint32_t)n - 1)));
    return expr_alt(&alt);
}

/* Whole numbers lo..hi, both >= 0. */
static uint32_t natural(struct expr_set *s, int64_t lo, int64_t hi)
{
    char low[24], high[24];
    struct expr_list alt = {.set = s};
    int first = snprintf(low, sizeof(low), "%" PRId64, lo);
    int last = snprintf(high, sizeof(high), "%" PRId64, hi);

    for (int n = first; n <= last && lo <= hi; n++) {
        char one[24] = "1";
        memset(one + 1, '0', (size_t)n - 1);
        const char *from = n == first ? low : one;
        expr_push(&alt, exactly(s, from, n == last ? high : NULL, (size_t)n));
    }
    return expr_alt(&alt);
}

/* At most n digits behind the point, as a fraction not below f. */
static uint32_t at_least(struct expr_set *s, const char *f, uint32_t n)
{
    if (all(f, n, '0'))
        return any_digits(s, 0, n);
    uint32_t same = expr_pair(s, digit(s, *f, *f), at_least(s, f + 1, n - 1));
    if (*f == '9')
        return same;
    return expr_either(s, same,
                       expr_pair(s, digit(s, (char)(*f + 1), '9'), any_digits(s, 0, n - 1)));
}

/* One to n digits, not above f. */
static uint32_t at_most(struct expr_set *s, const char *f, uint32_t n)
{
    if (n == 0)
        return EXPR_NEVER;
    uint32_t same = digit(s, *f, *f);
    if (n > 1)
        same = expr_pair(s, same, expr_maybe(s, at_most(s, f + 1, n - 1)));
    if (*f == '0')
        return same;
    return expr_either(s, same,
                       expr_pair(s, digit(s, '0', (char)(*f - 1)), any_digits(s, 0, n - 1)));
}

/* One to n digits from f to g; f is not all zeros. */
static uint32_t schema_number_between(struct expr_set *s, const char *f, const char *g, uint32_t n)
{
    if (*f == *g) {
        uint32_t rest = n == 1                   ? EXPR_EMPTY
                        : all(f + 1, n - 1, '0') ? expr_maybe(s, at_most(s, g + 1, n - 1))
                                                 : schema_number_between(s, f + 1, g + 1, n - 1);
        return expr_pair(s, digit(s, *f, *f), rest);
    }
    struct expr_list alt = {.set = s};
    expr_push(&alt, expr_pair(s, digit(s, *f, *f), at_least(s, f + 1, n - 1)));
    if (*f + 1 <= *g - 1)
        expr_push(&alt,
                  expr_pair(s, digit(s, (char)(*f + 1), (char)(*g - 1)), any_digits(s, 0, n - 1)));
    uint32_t top = digit(s, *g, *g);
    expr_push(&alt, n > 1 ? expr_pair(s, top, expr_maybe(s, at_most(s, g + 1, n - 1))) : top);
    return expr_alt(&alt);
}

/* A fraction with its point, or nothing, from f to g: n digits each, NULL = no bound. */
static uint32_t fraction(struct expr_set *s, const char *f, const char *g, uint32_t n)
{
    uint32_t point = expr_text(s, ".");
    bool from_zero = !f || all(f, n, '0');

    if (n == 0)
        return EXPR_EMPTY;
    if (from_zero && (!g || all(g, n, '9')))
        return expr_maybe(s, expr_pair(s, point, any_digits(s, 1, n)));
    if (from_zero)
        return expr_maybe(s, expr_pair(s, point, at_most(s, g, n)));
    if (!g)
        return expr_pair(s, point, at_least(s, f, n));
    return expr_pair(s, point, schema_number_between(s, f, g, n));
}

/* Numbers lo..hi in units of 10^-places, both >= 0. */
static uint32_t decimal(struct expr_set *s, int64_t lo, int64_t hi, uint32_t places)
{
    int64_t unit = 1;
    char f[24], g[24];
    struct expr_list alt = {.set = s};

    for (uint32_t i = 0; i < places; i++)
        unit *= 10;
    if (lo > hi)
        return EXPR_NEVER;
    int64_t first = lo / unit, last = hi / unit;
    (void)snprintf(f, sizeof(f), "%0*" PRId64, (int)places, lo % unit);
    (void)snprintf(g, sizeof(g), "%0*" PRId64, (int)places, hi % unit);
    if (first == last)
        return expr_pair(s, natural(s, first, first), fraction(s, f, g, places));
    expr_push(&alt, expr_pair(s, natural(s, first, first), fraction(s, f, NULL, places)));
    expr_push(&alt, expr_pair(s, natural(s, last, last), fraction(s, NULL, g, places)));
    if (first + 1 <= last - 1)
        expr_push(&alt,
                  expr_pair(s, natural(s, first + 1, last - 1), fraction(s, NULL, NULL, places)));
    return expr_alt(&alt);
}

/* The same with signs. */
static uint32_t schema_number_scaled(struct expr_set *s, int64_t lo, int64_t hi, uint32_t places)
{
    struct expr_list alt = {.set = s};

    if (lo < 0 && lo <= hi)
        expr_push(&alt, expr_pair(s, expr_text(s, "-"), decimal(s, hi < 0 ? -hi : 1, -lo, places)));
    if (hi >= 0 && lo <= hi)
        expr_push(&alt, decimal(s, lo > 0 ? lo : 0, hi, places));
    return expr_alt(&alt);
}

/* ---- bounds ---- */

static int read_bound(struct schema_reader *r, const json_t *schema, const char *keyword,
                      double missing, double *ret_bound)
{
    const json_t *v = json_object_get(schema, keyword);

    *ret_bound = missing;
    if (!v)
        return 0;
    if (!json_is_number(v))
        return schema_refuse(r, keyword, "`%s` must be a number", keyword);
    *ret_bound = json_number_value(v);
    if (!(fabs(*ret_bound) <= BOUND_MOST))
        return schema_refuse(r, keyword, "bounds beyond 1e15 are not offered");
    return 0;
}

static int read_bounds(struct schema_reader *r, const json_t *schema, struct bounds *ret_bounds)
{
    double min, max, above, below;
    const json_t *format = json_object_get(schema, "format");
    struct bounds b = {-INFINITY, INFINITY, false, false};

    if (read_bound(r, schema, "minimum", -INFINITY, &min) < 0 ||
        read_bound(r, schema, "maximum", INFINITY, &max) < 0 ||
        read_bound(r, schema, "exclusiveMinimum", -INFINITY, &above) < 0 ||
        read_bound(r, schema, "exclusiveMaximum", INFINITY, &below) < 0)
        return -EBADMSG;
    if (json_is_string(format) && strcmp(json_string_value(format), "int32") == 0) {
        b.low = INT32_MIN;
        b.high = INT32_MAX;
    }
    b.low = min > b.low ? min : b.low;
    b.high = max < b.high ? max : b.high;
    if (above >= b.low) {
        b.low = above;
        b.above = isfinite(above);
    }
    if (below <= b.high) {
        b.high = below;
        b.below = isfinite(below);
    }
    *ret_bounds = b;
    return 0;
}

/* x * 10^places as a whole number, the next one inside when it is none or not allowed. */
static int64_t schema_number_scale(double x, uint32_t places, bool up, bool without)
{
    long double y = x;
    for (uint32_t i = 0; i < places; i++)
        y *= 10;
    long double whole = rintl(y);
    if (fabsl(y - whole) <= 1e-9L * fmaxl(1, fabsl(y))) {
        int64_t n = (int64_t)whole;
        return without ? (up ? n + 1 : n - 1) : n;
    }
    return (int64_t)(up ? ceill(y) : floorl(y));
}

static int digits_of(double x)
{
    int n = 1;
    for (x = fabs(x); x >= 10; x /= 10)
        n++;
    return n;
}

/* How many digits behind the point a bound has, at most `most`. */
static uint32_t automaton_states_of(double x, uint32_t most)
{
    uint32_t n = 0;
    long double y = x;
    while (n < most && isfinite(x) && fabsl(y - rintl(y)) > 1e-9L * fmaxl(1, fabsl(y))) {
        y *= 10;
        n++;
    }
    return n;
}

static uint32_t whole_range(struct expr_set *s, struct bounds b)
{
    const int64_t most = 999999999999999;
    int64_t lo = isfinite(b.low) ? schema_number_scale(b.low, 0, true, b.above) : -most;
    int64_t hi = isfinite(b.high) ? schema_number_scale(b.high, 0, false, b.below) : most;
    if (lo > hi)
        return EXPR_NEVER;
    return schema_number_scaled(s, lo, hi, 0);
}

static uint32_t real_range(struct expr_set *s, struct bounds b)
{
    struct bounds in = b;
    bool open_low = !isfinite(b.low), open_high = !isfinite(b.high);
    double far = HALF_OPEN;
    struct expr_list alt = {.set = s};

    if (open_low)
        in.low = b.high < -far ? -BOUND_MOST + 1 : -far;
    if (open_high)
        in.high = b.low > far ? BOUND_MOST - 1 : far;
    int digits = digits_of(fabs(in.low) > fabs(in.high) ? in.low : in.high);
    uint32_t most = digits < DIGITS_MOST ? (uint32_t)(DIGITS_MOST - digits) : 0;
    uint32_t low = automaton_states_of(b.low, most), high = automaton_states_of(b.high, most);
    uint32_t places = low > high ? low : high;
    places = places < FRACTION_BEST ? FRACTION_BEST : places;
    places = places > most ? most : places;
    expr_push(&alt,
              schema_number_scaled(s, schema_number_scale(in.low, places, true, in.above),
                                   schema_number_scale(in.high, places, false, in.below), places));
    /* Large ones behind that, whole. */
    if (open_high && in.high == far)
        expr_push(&alt, schema_number_scaled(s, HALF_OPEN + 1, (int64_t)BOUND_MOST - 1, 0));
    if (open_low && in.low == -far)
        expr_push(&alt, schema_number_scaled(s, 1 - (int64_t)BOUND_MOST, -HALF_OPEN - 1, 0));
    return expr_alt(&alt);
}

/* The text of value / 10^places, without zeros at the end. */
static uint32_t decimal_text(struct expr_set *s, int64_t value, uint32_t places)
{
    char text[64];
    int64_t whole = value < 0 ? -value : value, below = 0, ten = 1;

    for (uint32_t i = 0; i < places; i++, whole /= 10, ten *= 10)
        below += whole % 10 * ten;
    int n = snprintf(text, sizeof(text), "%s%lld", value < 0 ? "-" : "", (long long)whole);
    if (below > 0)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ".%0*lld", (int)places, (long long)below);
    while (below > 0 && text[n - 1] == '0')
        text[--n] = '\0';
    return expr_text(s, text);
}

/* The multiples of a number with so many places that lie within the bounds, one by one: those next
 * to zero, or to the bound that is next to it, where there are more than MULTIPLES_MOST. */
static int read_multiples(struct schema_reader *r, double one, uint32_t places, struct bounds b,
                          uint32_t *ret_expr)
{
    const int64_t of = llround(one * pow(10, places));
    const double far = one * MULTIPLES_MOST;
    struct expr_list alt = {.set = r->set};
    double from = b.low > 0 ? b.low : b.high < 0 ? b.high : 0;
    double low = fmax(b.low, from - far) / one, high = fmin(b.high, from + far) / one;
    int64_t lo = (int64_t)ceil(low - fabs(low) * 1e-12),
            hi = (int64_t)floor(high + fabs(high) * 1e-12);
    if (b.above && (double)lo * one <= b.low)
        lo++;
    if (b.below && (double)hi * one >= b.high)
        hi--;
    if (lo > hi)
        return schema_contradicts(r, "multipleOf", "no multiple lies within the bounds");
    while (hi - lo >= MULTIPLES_MOST) { /* from the end that is farther from zero */
        if (-lo > hi)
            lo++;
        else
            hi--;
    }
    for (int64_t k = lo; k <= hi; k++)
        expr_push(&alt, decimal_text(r->set, k * of, places));
    *ret_expr = expr_alt(&alt);
    return 0;
}

/* Numbers with so many places at most: multiples of 0.1, 0.01 and so on. */
static uint32_t read_places(struct expr_set *s, uint32_t places, struct bounds b)
{
    const double far = BOUND_MOST / pow(10, places + 1);
    if (!isfinite(b.low) || b.low < -far)
        b.low = -far;
    if (!isfinite(b.high) || b.high > far)
        b.high = far;
    int64_t lo = schema_number_scale(b.low, places, true, b.above),
            hi = schema_number_scale(b.high, places, false, b.below);
    return lo > hi ? EXPR_NEVER : schema_number_scaled(s, lo, hi, places);
}

/* Whether it has no more places. */
static bool has_places(double of, uint32_t places)
{
    const double scaled = of * pow(10, places);
    return scaled > 0.5 && fabs(scaled - rint(scaled)) < 1e-9 + scaled * 1e-15;
}

/* The least whole number that is a multiple of one with so many places. */
static double whole_multiple(double of, uint32_t places)
{
    int64_t a = llround(of * pow(10, places)), b = llround(pow(10, places)), x = a, y = b;

    while (y != 0) { /* Euclid's */
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    const int64_t least = a / x;
    return (double)least;
}

static int read_multiple_of(struct schema_reader *r, const json_t *multiple, bool whole,
                            struct bounds b, uint32_t *ret_expr)
{
    double of = json_number_value(multiple);
    uint32_t places = automaton_states_of(of, PLACES_MOST);
    if (!json_is_number(multiple) || !(of > 0))
        return schema_refuse(r, "multipleOf", "`multipleOf` must be a number above 0");
    if (whole && of <= MULTIPLE_MOST && has_places(of, places)) {
        of = whole_multiple(of, places);
        places = 0;
    }
    if (of == 1)
        *ret_expr = whole_range(r->set, b);
    else if (places > 0 && fabs(of * pow(10, places) - 1) < 1e-9)
        *ret_expr = read_places(r->set, places, b);
    else if (of <= MULTIPLE_MOST && has_places(of, places))
        return read_multiples(r, of, places, b, ret_expr);
    else
        return schema_refuse(r, "multipleOf",
                             "multiples of numbers up to %.0f with up to %u places are offered",
                             (double)MULTIPLE_MOST, PLACES_MOST);
    return *ret_expr == EXPR_NEVER
               ? schema_contradicts(r, "multipleOf", "no multiple lies within the bounds")
               : 0;
}

int schema_number(struct schema_reader *r, const json_t *schema, bool whole, uint32_t *ret_expr)
{
    const json_t *multiple = json_object_get(schema, "multipleOf");
    struct bounds b;

    if (read_bounds(r, schema, &b) < 0)
        return -EBADMSG;
    if (multiple)
        return read_multiple_of(r, multiple, whole, b, ret_expr);
    if (!isfinite(b.low) && !isfinite(b.high)) {
        *ret_expr = json_call(r, whole ? RULE_INTEGER : RULE_NUMBER);
        return 0;
    }
    uint32_t e = whole ? whole_range(r->set, b) : real_range(r->set, b);
    if (e == EXPR_NEVER)
        return schema_contradicts(r, NULL, "no number lies within its bounds");
    *ret_expr = e;
    return 0;
}
