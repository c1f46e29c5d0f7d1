"""The stages of a build, each a function from a specification to a receipt on disk.

ingest: corpus -> splits of examples     (moved to the cache one by one: an interrupted build goes on)
dedup:  splits -> trie, provenance       (written beside, renamed when complete)
pack:   trie -> plan -> windows, shards, ledger, manifest (published by `pipeline`)
"""
