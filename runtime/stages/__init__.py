"""The stages of a runtime, in the order in which a batch passes them (rfcs/0007).

    awaited_sources    waits for a source that nothing was ever written to, or whose group another process owns
    heartbeat          shows a group's standbys that the group's owner is alive
    source_reader      takes batches from a source's manifest, one thread for each source
    portions           groups them into portions, one for each commit
    admission          lets a portion be fetched when the memory budget has room
    pipeline           fetches and decodes in one worker_pool, commits in another
    sink_answers       calls the sink and interprets its answer
    frontier           tracks up to where all portions are committed, for source_reader to acknowledge

active_source holds the state of one source, which all stages share.
"""
