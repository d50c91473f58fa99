from lgq.cli import main

main()
