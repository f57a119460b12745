"""What every folder may use: errors, clock, checks of arguments, names, metrics, waiting, renewals. No I/O on a store.

Builds on nothing else in forebay.
"""
