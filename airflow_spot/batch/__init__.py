"""AWS Batch, behind the words of this package.

``requests`` and ``jobs`` turn our values into Batch's JSON and back, ``classify`` reads the vendor's texts (the only
module that does), ``evidence`` asks AWS what became of a machine, ``watcher`` shares DescribeJobs between training
runs, ``logs`` and ``preflight`` do what they say, and :class:`airflow_spot.batch.client.BatchBackend` joins them.
"""
