"""The Python interface: all commands as functions with typed results.

`import bench` offers all of it by name; `bench.run` is `bench.interface.running.run`. The command line calls the same
functions. They print nothing: notices go to the logger "bench", progress to a callback.
"""
