"""A cluster on this machine: an API server in memory, and a kubelet that runs the images' commands as processes.

Read api_server.py first (objects), then controllers.py (StatefulSets, Jobs, Services), kubelet.py (pods), images.py
(the commands behind the images' names), and local_cluster.py, which starts all of it.

Pods have addresses of their own in 127.0.0.0/8, and no files of their own: paths of mounts, names of Services and
0.0.0.0 are replaced in arguments, variables and ConfigMaps. Nothing here needs root, except PostgreSQL under root.
"""
