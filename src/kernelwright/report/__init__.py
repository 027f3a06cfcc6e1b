"""What people look at: tables, results.tsv, summaries; written from the journal, never from memory."""
