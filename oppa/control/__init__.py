"""Control a job while it trains: policies choose batch sizes and layout, and a service carries their decisions to the job."""
