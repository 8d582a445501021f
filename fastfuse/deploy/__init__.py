"""What a fleet needs beside the program: manifests of Kubernetes, the dashboard, alert rules, files of the system."""
