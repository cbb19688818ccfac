"""Start the process that follows a study or a run with one tracker."""

from oppa.tracking.follower import main

main()
