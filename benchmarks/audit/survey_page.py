def page(results, facts):
    return "draft\n"
