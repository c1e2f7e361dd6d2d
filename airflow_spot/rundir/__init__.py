"""The run directory: all that Airflow and the training container share, in an object store, as contract 1."""
