"""The release that this code is of; the package's and the chart's version (a test compares them).

A constant, since an image holds the code without a package's metadata.
"""

RELEASE = "0.1.0"
