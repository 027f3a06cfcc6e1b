"""What is kept on disk: the journal (SQL), blobs (content-addressed) and where a run's folder is.

Empty on purpose: `store.locate` must not pay for SQLAlchemy, which takes 0.4 s to import.
"""
