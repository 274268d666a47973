"""Several replicas of one server behind a router, in one virtual time. Start reading at `fleet.py`.

`routing.py` chooses a replica for a request, `router.py` stands between the workload and the replicas, `replica.py` is
one of them and its life, `operations.py` starts and stops them: failures, rolling updates, autoscaling.
"""
