"""Record studies and runs with trackers such as MLflow: `[tracking]` of a job file names them.

A tracker never takes part in a session. A process of its own follows the study's trials or the run's ledger, which the session writes in
any case, and passes them on. So a tracker that is slow or fails costs the session nothing, and a later session continues where it stopped.
"""
