"""Tables: TabPFN v1 with linear attention, so that a training set may have as many rows as a long document has tokens."""
