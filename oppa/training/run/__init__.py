"""Run training jobs: steps, directives, attempts, the ledger, and the supervisor."""
