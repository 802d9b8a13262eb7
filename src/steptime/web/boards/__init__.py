"""The boards, one file each; the page finds them by file name."""
