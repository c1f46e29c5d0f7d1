"""The stages of a build, each a function from a specification to a receipt on disk.

ingest: corpus -> splits of examples     (one receipt a split: an interrupted build goes on)
dedup:  splits -> trie, provenance       (written beside, renamed when complete)
pack:   trie -> plan -> windows, shards, ledger, manifest (published by `pipeline`)
"""
