/*
 * The subset construction over bytes and calls (automaton.h). Called by compile.c for each new
 * form, and by table.c and schema_keys.c for parts of one.
 *
 * nfa.c gives a graph in which a text may be at several nodes at once. A state here is the set of
 * nodes where a text can be, so that a text is always in one state. Made as follows:
 *
 *   1. Bytes that no edge of the graph tells apart are one class, so that a state has a cell for
 *      each class and not 256.
 *   2. The start of each rule is closed over: every node that is reached without a byte
 *      (close_over()). The sorted set is looked up in a hash of sets; a new set is a new state
 *      (automaton_intern()).
 *   3. For each state, in the order in which they were made: the nodes behind each class of bytes,
 *      and behind each call of a rule, are closed over and are the state that this edge leads to
 *      (add_edges(), add_calls()). That makes further states, until none is new.
 *
 * A call is an edge of its own: the rule that is called has its states once, however many places
 * call it, and which place to return to is on a stack at run time (automaton_states.c). Two calls
 * of the same rule from one state are joined, as bytes are, so that the stack stays one.
 *
 * Then what must not be is refused (a rule that begins with itself would push for ever without
 * reading a byte), and twins are found: states that the next `longest` bytes do not tell apart. No
 * token has more, so twins have the same mask. It is the refinement of Moore's minimization, a
 * round for each byte: states are alike when they were, and their edges lead to what was alike.
 *
 * Sets can double in number with each node of the graph, so states, cells and steps have bounds,
 * and steps are paid for (common/work.h).
 */
#include "server/grammar/automaton.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/err.h"
#include "server/grammar/expr.h"
#include "server/grammar/nfa.h"

#define WORK_MOST  (1u << 25) /* steps of the construction */
#define TWIN_MOST  (1u << 22) /* states times rounds of the search for twins */
#define CELLS_MOST (1u << 22) /* states times classes */

/* A growing array of numbers. */
struct numbers {
    uint32_t *at, count, room;
};

struct automaton_making {
    struct nfa nfa;
    struct automaton a;
    uint32_t *member; /* sets of nfa nodes, one after the other */
    uint32_t members, member_room;
    uint32_t *first; /* [states + 1] in `member` */
    uint32_t state_room, call_room;
    size_t next_room;
    uint32_t *slot, slots; /* hash of sets: state + 1 */
    uint32_t *mark, turn;  /* [nfa nodes] which have been in the closure that is being made */
    struct numbers stack, set, bucket[256], calls;
    uint64_t done; /* steps, those paid for */
    struct ek_work *work;
    bool no_memory, too_large;
};

static bool grow(struct automaton_making *m, void **at, uint32_t *room, uint64_t need, size_t size)
{
    if (need <= *room)
        return true;
    uint64_t want = *room ? *room * 2ull : 64;
    while (want < need)
        want *= 2;
    void *bigger = want <= UINT32_MAX ? realloc(*at, want * size) : NULL;
    if (!bigger) {
        m->no_memory = true;
        return false;
    }
    *at = bigger;
    *room = (uint32_t)want;
    return true;
}

static void automaton_push(struct automaton_making *m, struct numbers *n, uint32_t value)
{
    void *at = n->at;
    bool ok = grow(m, &at, &n->room, n->count + 1ull, sizeof(*n->at));
    n->at = at;
    if (ok)
        n->at[n->count++] = value;
}

/* ---- classes of bytes ---- */

static void make_classes(struct automaton_making *m)
{
    bool begins[257] = {true};

    for (uint32_t i = 0; i < m->nfa.count; i++) {
        const struct nfa_node *n = &m->nfa.at[i];
        if (n->kind != NFA_BYTE)
            continue;
        begins[n->lo] = true;
        begins[n->hi + 1] = true;
    }
    uint32_t class = 0;
    for (uint32_t b = 0; b < 256; b++) {
        class += b > 0 && begins[b];
        m->a.class_of[b] = (uint8_t) class;
    }
    m->a.classes = class + 1;
}

/* ---- sets ---- */

static int automaton_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds what can be reached from the node without a byte to m->set. */
static void close_over(struct automaton_making *m, uint32_t node)
{
    m->stack.count = 0;
    automaton_push(m, &m->stack, node);
    while (m->stack.count > 0 && !m->no_memory) {
        uint32_t at = m->stack.at[--m->stack.count];
        if (at == NFA_NONE || m->mark[at] == m->turn)
            continue;
        m->mark[at] = m->turn;
        m->done++;
        const struct nfa_node *n = &m->nfa.at[at];
        if (n->kind == NFA_SPLIT)
            automaton_push(m, &m->stack, n->out);
        else
            automaton_push(m, &m->set, at);
        if (n->kind == NFA_SPLIT || n->kind == NFA_CALL)
            automaton_push(m, &m->stack, n->other);
    }
}

static bool rehash(struct automaton_making *m)
{
    uint32_t slots = m->slots ? m->slots * 2 : 256;
    uint32_t *slot = calloc(slots, sizeof(*slot));
    if (!slot) {
        m->no_memory = true;
        return false;
    }
    for (uint32_t i = 0; i < m->a.states; i++) {
        const uint32_t *set = m->member + m->first[i];
        uint32_t at = (uint32_t)XXH3_64bits(set, (m->first[i + 1] - m->first[i]) * sizeof(*set));
        while (slot[at & (slots - 1)])
            at++;
        slot[at & (slots - 1)] = i + 1;
    }
    free(m->slot);
    m->slot = slot;
    m->slots = slots;
    return true;
}

static bool room_for_state(struct automaton_making *m)
{
    struct automaton *a = &m->a;
    uint32_t cap = m->state_room;
    void *states = a->state, *first = m->first, *member = m->member, *next = a->next;
    bool ok = grow(m, &states, &cap, a->states + 2ull, sizeof(*a->state));

    a->state = states;
    cap = m->state_room;
    ok = ok && grow(m, &first, &cap, a->states + 2ull, sizeof(*m->first));
    m->first = first;
    m->state_room = ok ? cap : m->state_room;
    ok = ok &&
         grow(m, &member, &m->member_room, (uint64_t)m->members + m->set.count, sizeof(*m->member));
    m->member = member;
    size_t cells = (size_t)(a->states + 1) * a->classes;
    if (ok && cells > m->next_room) {
        size_t want = cells * 2;
        next = realloc(next, want * sizeof(*a->next));
        ok = next != NULL;
        m->no_memory |= !ok;
        if (ok) {
            a->next = next;
            m->next_room = want;
        }
    }
    return ok && (a->states * 2 < m->slots || rehash(m));
}

/* The state of m->set, a new one if need be. */
static uint32_t automaton_intern(struct automaton_making *m)
{
    struct automaton *a = &m->a;
    struct numbers *set = &m->set;

    if (set->count == 0 || m->no_memory)
        return AUTOMATON_NONE;
    qsort(set->at, set->count, sizeof(*set->at), automaton_compare);
    m->done += 8ull * set->count;
    size_t bytes = set->count * sizeof(*set->at);
    uint32_t at = (uint32_t)XXH3_64bits(set->at, bytes);
    for (; m->slots > 0 && m->slot[at & (m->slots - 1)]; at++) {
        uint32_t i = m->slot[at & (m->slots - 1)] - 1;
        if (m->first[i + 1] - m->first[i] == set->count &&
            memcmp(m->member + m->first[i], set->at, bytes) == 0)
            return i;
    }
    if (a->states >= AUTOMATON_STATES_MOST || (uint64_t)(a->states + 1) * a->classes > CELLS_MOST)
        m->too_large = true;
    if (m->too_large || !room_for_state(m))
        return AUTOMATON_NONE;
    at = (uint32_t)XXH3_64bits(set->at, bytes);
    while (m->slot[at & (m->slots - 1)])
        at++;
    uint32_t i = a->states++;
    m->slot[at & (m->slots - 1)] = i + 1;
    m->first[i] = m->members;
    memcpy(m->member + m->members, set->at, bytes);
    m->members += set->count;
    m->first[i + 1] = m->members;
    a->state[i] = (struct automaton_state){0};
    for (uint32_t c = 0; c < a->classes; c++)
        a->next[(size_t)i * a->classes + c] = AUTOMATON_NONE;
    return i;
}

/* The state of all that can be reached from these nodes. */
static uint32_t state_of(struct automaton_making *m, const uint32_t *node, uint32_t count)
{
    m->set.count = 0;
    m->turn++;
    for (uint32_t i = 0; i < count; i++)
        close_over(m, node[i]);
    return automaton_intern(m);
}

/* ---- edges ---- */

static void add_calls(struct automaton_making *m, uint32_t state)
{
    struct automaton *a = &m->a;
    struct numbers *calls = &m->calls; /* pairs of a rule and a node */

    a->state[state].first_call = a->call_count;
    for (uint32_t i = 0; i < calls->count && !m->no_memory;) {
        uint32_t rule = UINT32_MAX;
        m->bucket[0].count = 0;
        for (uint32_t k = 0; k < calls->count; k += 2) /* the lowest rule that is left */
            rule = calls->at[k] < rule ? calls->at[k] : rule;
        for (uint32_t k = 0; k < calls->count; k += 2) {
            if (calls->at[k] != rule)
                continue;
            automaton_push(m, &m->bucket[0], calls->at[k + 1]);
            calls->at[k] = UINT32_MAX;
            i += 2;
        }
        m->done += (uint64_t)calls->count * 2;
        uint32_t next = state_of(m, m->bucket[0].at, m->bucket[0].count);
        void *at = a->call;
        if (!grow(m, &at, &m->call_room, a->call_count + 1ull, sizeof(*a->call)))
            return;
        a->call = at;
        a->call[a->call_count++] = (struct automaton_call){rule, next};
        a->state[state].calls++;
    }
    m->bucket[0].count = 0;
}

static void add_edges(struct automaton_making *m, uint32_t state)
{
    struct automaton *a = &m->a;
    uint32_t low = a->classes, high = 0;
    bool accepts = false;

    m->calls.count = 0;
    for (uint32_t i = m->first[state]; i < m->first[state + 1]; i++) {
        const struct nfa_node *n = &m->nfa.at[m->member[i]];
        accepts |= n->kind == NFA_ACCEPT;
        if (n->kind == NFA_CALL) {
            automaton_push(m, &m->calls, n->rule);
            automaton_push(m, &m->calls, n->out);
        }
        if (n->kind != NFA_BYTE)
            continue;
        uint32_t from = a->class_of[n->lo], to = a->class_of[n->hi];
        for (uint32_t c = from; c <= to; c++)
            automaton_push(m, &m->bucket[c], n->out);
        low = from < low ? from : low;
        high = to > high ? to : high;
        m->done += to - from + 1;
    }
    uint32_t edges = 0;
    for (uint32_t c = low; c <= high && c < a->classes; c++) {
        if (m->bucket[c].count == 0)
            continue;
        uint32_t next = state_of(m, m->bucket[c].at, m->bucket[c].count);
        a->next[(size_t)state * a->classes + c] = next;
        m->bucket[c].count = 0;
        edges++;
    }
    a->state[state].moves = edges > 0;
    edges += m->calls.count;
    add_calls(m, state);
    a->state[state].accepts = accepts;
    a->state[state].last = accepts && edges == 0;
}

/* ---- what must not be ---- */

enum rule_visit { VISIT_NEW, VISIT_OPEN, VISIT_DONE };

/* Follows what a rule may begin with; the rule that comes round to itself, or goes too deep (then
 * *ret_deep is true), or UINT32_MAX. */
static uint32_t find_loop(const struct automaton *a, uint32_t rule, uint8_t *visit, uint32_t depth,
                          bool *ret_deep)
{
    if (visit[rule] == VISIT_DONE || a->start[rule] == AUTOMATON_NONE)
        return UINT32_MAX;
    *ret_deep = visit[rule] != VISIT_OPEN;
    if (visit[rule] == VISIT_OPEN || depth > EXPR_DEPTH_MOST)
        return rule;
    visit[rule] = VISIT_OPEN;
    const struct automaton_state *s = &a->state[a->start[rule]];
    for (uint32_t i = 0; i < s->calls; i++) {
        uint32_t loop = find_loop(a, a->call[s->first_call + i].rule, visit, depth + 1, ret_deep);
        if (loop != UINT32_MAX)
            return loop;
    }
    visit[rule] = VISIT_DONE;
    return UINT32_MAX;
}

static int automaton_check(const struct expr_set *set, const struct automaton *a, uint32_t root,
                           struct ek_fault *fault)
{
    if (a->start[root] == AUTOMATON_NONE)
        return ek_fault_set(fault, "", "no text at all would be valid; check for contradictions");
    uint8_t *visit = calloc(a->rules, 1);
    uint32_t loop = UINT32_MAX;
    bool deep = false;
    if (!visit)
        return -ENOMEM;
    for (uint32_t r = 0; r < a->rules && loop == UINT32_MAX; r++)
        loop = find_loop(a, r, visit, 0, &deep);
    free(visit);
    if (loop == UINT32_MAX)
        return 0;
    if (deep)
        return ek_fault_set(fault, "",
                            "before any text more than %u rules call one another, `%s` among them; "
                            "write some of them in place of their names",
                            EXPR_DEPTH_MOST, set->rule[loop].name);
    return ek_fault_set(fault, "",
                        "the rule `%s` can begin with itself; write the repetition at its end, or "
                        "with *",
                        set->rule[loop].name);
}

/* ---- twins ---- */

/* One round: states are alike when they were and all their edges lead to what was alike. Returns
 * how many kinds there are. */
static uint32_t refine(const struct automaton *a, const uint32_t *kind, uint32_t *ret_kind,
                       XXH128_hash_t *hash, uint32_t *slot, uint32_t slots)
{
    uint32_t kinds = 0;
    XXH3_state_t h;

    memset(slot, 0, slots * sizeof(*slot));
    for (uint32_t q = 0; q < a->states; q++) {
        const uint32_t *next = a->next + (size_t)q * a->classes;
        const struct automaton_state *s = &a->state[q];
        uint32_t before = UINT32_MAX - 1;
        (void)XXH3_128bits_reset(&h);
        (void)XXH3_128bits_update(&h, &kind[q], sizeof(*kind));
        for (uint32_t c = 0; c < a->classes; c++) {
            uint32_t run[2] = {c, next[c] == AUTOMATON_NONE ? AUTOMATON_NONE : kind[next[c]]};
            if (next[c] == before)
                continue;
            before = next[c];
            (void)XXH3_128bits_update(&h, run, sizeof(run));
        }
        for (uint32_t i = 0; i < s->calls; i++) {
            const struct automaton_call *call = &a->call[s->first_call + i];
            uint32_t edge[3] = {AUTOMATON_NONE, call->rule, kind[call->next]};
            (void)XXH3_128bits_update(&h, edge, sizeof(edge));
        }
        XXH128_hash_t digest = XXH3_128bits_digest(&h);
        uint32_t at = (uint32_t)digest.low64 & (slots - 1);
        while (slot[at] && !XXH128_isEqual(hash[slot[at] - 1], digest))
            at = (at + 1) & (slots - 1);
        if (!slot[at]) {
            hash[kinds] = digest;
            slot[at] = ++kinds;
        }
        ret_kind[q] = slot[at] - 1;
    }
    return kinds;
}

static int find_twins(struct automaton *a, uint32_t longest, struct ek_work *work)
{
    uint32_t n = a->states, slots = 64, kinds = 2;
    while (slots < n * 2)
        slots *= 2;
    uint32_t *kind = calloc(n, sizeof(*kind)), *then = calloc(n, sizeof(*then));
    uint32_t *slot = calloc(slots, sizeof(*slot));
    XXH128_hash_t *hash = calloc(n, sizeof(*hash));
    int r = -ENOMEM;

    a->twin = calloc(n, sizeof(*a->twin));
    if (!kind || !then || !slot || !hash || !a->twin)
        goto out;
    for (uint32_t q = 0; q < n; q++) {
        kind[q] = a->state[q].accepts != a->state[0].accepts; /* less than n, as all later kinds */
        a->twin[q] = q;
    }
    r = 0;
    if ((uint64_t)n * longest > TWIN_MOST)
        goto out; /* each state is its own */
    const uint64_t cost = (uint64_t)n * (8 + a->classes / 8) + a->call_count;
    for (uint32_t round = 0; round < longest && ek_work_pay(work, cost); round++) {
        uint32_t now = refine(a, kind, then, hash, slot, slots);
        uint32_t *swap = kind;
        kind = then;
        then = swap;
        if (now == kinds && round > 0)
            break;
        kinds = now;
    }
    memset(then, 0xff, n * sizeof(*then));
    for (uint32_t q = 0; q < n; q++) {
        if (then[kind[q]] == UINT32_MAX)
            then[kind[q]] = q;
        a->twin[q] = then[kind[q]];
    }
out:
    free(kind);
    free(then);
    free(slot);
    free(hash);
    return r;
}

/* ---- all of it ---- */

static int construct(struct automaton_making *m, const struct expr_set *set)
{
    struct automaton *a = &m->a;

    a->rules = set->rules;
    a->start = calloc(a->rules + 1, sizeof(*a->start));
    m->mark = calloc(m->nfa.count + 1, sizeof(*m->mark));
    if (!a->start || !m->mark)
        return -ENOMEM;
    make_classes(m);
    for (uint32_t r = 0; r < a->rules; r++)
        a->start[r] = state_of(m, &m->nfa.start[r], 1);
    for (uint32_t q = 0; q < a->states && !m->no_memory && !m->too_large; q++) {
        uint64_t before = m->done;
        add_edges(m, q);
        m->too_large |= m->done > WORK_MOST || !ek_work_pay(m->work, m->done - before);
    }
    return m->no_memory ? -ENOMEM : m->too_large ? -E2BIG : 0;
}

static void making_done(struct automaton_making *m)
{
    nfa_done(&m->nfa);
    automaton_done(&m->a);
    free(m->member);
    free(m->first);
    free(m->slot);
    free(m->mark);
    free(m->stack.at);
    free(m->set.at);
    free(m->calls.at);
    for (int i = 0; i < 256; i++)
        free(m->bucket[i].at);
}

int automaton_make(const struct expr_set *set, uint32_t root, uint32_t longest,
                   struct automaton *ret_automaton, struct ek_fault *fault)
{
    struct automaton_making *m = calloc(1, sizeof(*m));
    int r = -ENOMEM;

    if (!m || set->no_memory)
        goto out;
    r = -E2BIG;
    if (!expr_ok(set))
        goto out;
    assert(root < set->rules);
    for (uint32_t i = 0; i < set->rules; i++)
        assert(set->rule[i].body != UINT32_MAX); /* the reader's duty */
    m->work = set->work;
    r = nfa_make(set, &m->nfa);
    if (r == 0)
        r = construct(m, set);
    if (r == 0)
        r = automaton_check(set, &m->a, root, fault);
    if (r == 0)
        r = find_twins(&m->a, longest, set->work);
    if (r == 0) {
        *ret_automaton = m->a;
        m->a = (struct automaton){0};
    }
out:
    if (m)
        making_done(m);
    free(m);
    if (r == -E2BIG)
        r = ek_fault_set(
            fault, "",
            "it is too large: it needs more than %u states, or too long to compile; use "
            "fewer or smaller repetitions",
            AUTOMATON_STATES_MOST);
    return r;
}

void automaton_done(struct automaton *a)
{
    free(a->state);
    free(a->next);
    free(a->call);
    free(a->start);
    free(a->twin);
    *a = (struct automaton){0};
}
