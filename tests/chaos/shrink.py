"""Makes a schedule that fails smaller while it still fails: delta debugging (ddmin) over the events, within bounded time."""
import time


def shrink(schedule, fails, seconds, say=lambda text: None):
    """fails(schedule) -> bool runs it. Returns the smallest schedule that was seen to fail, and how many runs that took."""
    end, runs, events, parts = time.monotonic() + seconds, 0, schedule["events"], 2
    while len(events) > 1 and time.monotonic() < end:
        size, smaller = -(-len(events) // parts), None
        pieces = [events[i:i + size] for i in range(0, len(events), size)]
        rests = [sum(pieces[:i] + pieces[i + 1:], []) for i in range(len(pieces))]
        for tried in pieces + (rests if len(pieces) > 2 else []):
            if time.monotonic() >= end:
                break
            runs += 1
            if fails(dict(schedule, events=tried)):
                smaller = tried
                break
        if smaller is not None:
            say(f"{len(smaller)} of {len(schedule['events'])} events still fail")
            events, parts = smaller, max(2, min(parts - 1, len(smaller)))
        elif parts >= len(events):
            break
        else:
            parts = min(len(events), parts * 2)
    return dict(schedule, events=events), runs
