"""What happens when: drawn from a seed, written and read as JSON, so that a failure can be told to somebody else."""
import json
import random

from faults import TABLE, WITHHELD, Event, fits

FIRST_S, LAST_S = 0.5, 6.0
MOST_KILLS = 3  # more of them within a run would rightly open the breaker


def draw(seed, usable):
    """A world and three to eight faults in it; the same for the same seed and the same faults that can be made."""
    rng = random.Random(f"evenkeel {seed}")
    options = {"paced": rng.random() < 0.7, "seqs": rng.choice((2, 4, 8)), "blocks": rng.choice((0, 0, 140, 200)), "clients": rng.choice((2, 4, 6)),
               "short_drain": rng.random() < 0.2, "haproxy": rng.choice(("", "", "health", "agent"))}
    names = [n for n in TABLE if n in usable and n not in WITHHELD]
    apart = rng.choice([a for a in (False, True) if any(fits(TABLE[n].needs, a) for n in names)])
    if apart:  # a process of its own is for the processor alone
        options |= {"paced": False, "engine_process": True}
    names = [n for n in names if fits(TABLE[n].needs, apart)]
    events, kills, left = [], 0, rng.randint(3, 8)
    while left > 0:
        f = TABLE[rng.choices(names, [TABLE[n].weight for n in names])[0]]
        left -= 1
        if kills + f.kills > MOST_KILLS:
            continue
        kills += f.kills
        events.append(Event(round(rng.uniform(FIRST_S, LAST_S), 2), f.name, round(rng.uniform(*f.lasts), 2), f.draw(rng)))
    events.sort(key=lambda e: e.at)
    return {"seed": seed, "options": options, "events": [e.json() for e in events]}


def events_of(schedule):
    return [Event(**e) for e in schedule["events"]]


def told(schedule):
    """For people: one line each."""
    lines = [f"world: {json.dumps(schedule['options'])}"]
    for e in schedule["events"]:
        lines.append(f"  {e['at']:5.2f} s  {e['kind']}" + (f" for {e['lasts']} s" if e["lasts"] else "") + (f" {json.dumps(e['args'])}" if e["args"] else ""))
    return "\n".join(lines)
