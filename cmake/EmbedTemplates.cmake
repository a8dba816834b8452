# Writes OUTPUT, a C++ file that defines packjit::embedded_template for the files NAMES below ROOT.
set(cases "")
foreach(name IN LISTS NAMES)
  file(READ "${ROOT}/${name}" text)
  # Compilers limit the length of one literal; adjacent ones are joined.
  string(LENGTH "${text}" length)
  set(literal "")
  set(begin 0)
  while(begin LESS length)
    string(SUBSTRING "${text}" ${begin} 8000 piece)
    string(APPEND literal "R\"packjit(${piece})packjit\"\n")
    math(EXPR begin "${begin} + 8000")
  endwhile()
  string(APPEND cases "    {\"${name}\", ${literal}},\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"templates/embedded_templates.hpp\"

namespace packjit {

std::string_view embedded_template(std::string_view name) {
  static constexpr struct {
    std::string_view name, text;
  } kTemplates[] = {
${cases}  };
  for (const auto& entry : kTemplates) {
    if (entry.name == name) return entry.text;
  }
  return {};
}

}  // namespace packjit
")
