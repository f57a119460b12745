"""The stages of a runtime: read sources, admit to memory, fetch, decode, commit, acknowledge (rfcs/0007).

Builds on consumers of `forebay.buffer` and on the contract between the runtime and a sink.
"""
