"""What every folder may use: errors, clock, checks of arguments, names, metrics, waiting. Nothing here reads a store.

Builds on nothing else in forebay.
"""
