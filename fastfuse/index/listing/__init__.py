"""From LIST pages to a mapped inode table: `page` (parse), `lister` (trio), `snapshot` (save, load)."""
