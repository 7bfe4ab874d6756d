# SPDX-License-Identifier: Apache-2.0
"""A program that does nothing; the twin of /bin/true."""
